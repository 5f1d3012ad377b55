// SPDX-License-Identifier: Apache-2.0

use serde_json::json;

use super::*;

#[track_caller]
fn judge(schema: Value, value: Value, old: Option<&Value>) -> Vec<String> {
    let mut faults = Vec::new();
    Rules::of(&schema).judge(&schema, &value, old, &mut faults);
    faults
        .into_iter()
        .map(|fault| format!("{} {}: {}", fault.reason, fault.field, fault.detail))
        .collect()
}

#[track_caller]
fn refused(schema: Value) -> Vec<String> {
    let mut faults = Vec::new();
    check(&schema, true, "s", &mut faults);
    faults
        .into_iter()
        .map(|fault| format!("{}: {}", fault.field, fault.detail))
        .collect()
}

fn text_schema(rule: &str) -> Value {
    json!({ "type": "string", "x-kubernetes-validations": [{ "rule": rule }] })
}

#[test]
fn judges_expressions() {
    for (rule, value, holds) in [
        ("self == '' || isIP(self)", "10.0.0.1", true),
        ("self == '' || isIP(self)", "fd00::1", true),
        ("self == '' || isIP(self)", "", true),
        ("self == '' || isIP(self)", "10.0.0.256", false),
        ("isIP(self)", "::ffff:10.0.0.1", false),
        ("ip(self).family() == 4", "10.0.0.1", true),
        ("ip(self).isLoopback()", "127.0.0.1", true),
        ("ip(self).isGlobalUnicast()", "169.254.0.1", false),
        ("ip.isCanonical(self)", "FD00::1", false),
        ("string(ip(self)) == 'fd00::1'", "FD00::1", true),
        ("isCIDR(self)", "10.0.0.0/8", true),
        ("isCIDR(self)", "10.0.0.0", false),
        ("cidr(self).containsIP('10.1.2.3')", "10.0.0.0/8", true),
        ("cidr(self).containsIP(ip('11.1.2.3'))", "10.0.0.0/8", false),
        ("cidr(self).containsCIDR('10.1.0.0/16')", "10.0.0.0/8", true),
        (
            "cidr(self).prefixLength() == 8 && cidr(self).masked() == cidr(self)",
            "10.0.0.0/8",
            true,
        ),
        ("cidr(self).ip().family() == 6", "fd00::/8", true),
        ("self.matches('^[a-z]+$') && self.size() <= 3", "abc", true),
        ("self.find('[0-9]+') == '42'", "a42b", true),
        ("self.findAll('[0-9]') == ['4', '2']", "a42b", true),
        (
            "self.lowerAscii() == 'abc' && self.substring(1) == 'BC'",
            "ABC",
            true,
        ),
        ("self.split(',').isSorted()", "a,b,c", true),
        (
            "self.split(',').indexOf('b') == 1 && self.split(',').lastIndexOf('x') == -1",
            "a,b",
            true,
        ),
        ("self in ['a', 'b']", "b", true),
        (
            "sets.contains(['a', 'b'], [self]) && sets.intersects([self], ['a'])",
            "a",
            true,
        ),
        (
            "[1, 2, 3].sum() == 6 && [1, 2].max() == 2 && [1, 2].min() == 1",
            "",
            true,
        ),
        ("['a', 'b'].exists_one(x, x == self)", "a", true),
    ] {
        assert_eq!(refused(text_schema(rule)), Vec::<String>::new(), "{rule}");
        let found = judge(text_schema(rule), value.into(), None);
        assert_eq!(found.is_empty(), holds, "{rule} {value:?}: {found:?}");
    }
}

#[test]
fn words_faults_by_message_reason_and_field() {
    let schema = |more: Value| {
        let mut rule = json!({ "rule": "self.least <= self.most" });
        rule.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        json!({
            "type": "object",
            "properties": { "range": {
                "type": "object",
                "properties": { "least": { "type": "integer" }, "most": { "type": "integer" } },
                "x-kubernetes-validations": [rule],
            } },
        })
    };
    let object = json!({ "range": { "least": 2, "most": 1 } });

    for (rule, expected) in [
        (
            json!({}),
            "FieldValueInvalid range: Invalid value: \"object\": failed rule: self.least <= self.most",
        ),
        (
            json!({ "message": "least is too high" }),
            "FieldValueInvalid range: Invalid value: \"object\": least is too high",
        ),
        (
            json!({ "messageExpression": "string(self.least) + ' > ' + string(self.most)" }),
            "FieldValueInvalid range: Invalid value: \"object\": 2 > 1",
        ),
        (
            json!({ "message": "m", "reason": "FieldValueForbidden", "fieldPath": ".least" }),
            "FieldValueForbidden range.least: Forbidden: m",
        ),
    ] {
        assert_eq!(judge(schema(rule), object.clone(), None), [expected]);
    }
    assert_eq!(
        judge(schema(json!({})), json!({ "range": { "least": 2 } }), None),
        [
            "FieldValueInvalid range: Invalid value: \"object\": No such key: most evaluating rule: self.least <= self.most"
        ]
    );
}

#[test]
fn rules_about_changes_wait_for_a_change() {
    let schema = json!({
        "type": "object",
        "properties": {
            "size": { "type": "integer", "x-kubernetes-validations": [{ "rule": "self == oldSelf", "message": "size is immutable" }] },
            "peers": {
                "type": "array",
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
                "items": {
                    "type": "object",
                    "properties": { "name": { "type": "string" }, "port": { "type": "integer" } },
                    "x-kubernetes-validations": [{ "rule": "self.port >= oldSelf.port" }],
                },
            },
            "once": { "type": "string", "x-kubernetes-validations": [
                { "rule": "!oldSelf.hasValue() || oldSelf.value() == self", "optionalOldSelf": true },
                { "rule": "oldSelf.orValue('a').size() <= self.size()", "optionalOldSelf": true },
            ] },
        },
    });
    let old =
        json!({ "size": 1, "peers": [{ "name": "a", "port": 5 }, { "name": "b", "port": 1 }], "once": "aa" });

    let fine =
        json!({ "size": 1, "peers": [{ "name": "b", "port": 2 }, { "name": "c", "port": 0 }], "once": "aa" });
    assert_eq!(judge(schema.clone(), fine, Some(&old)), Vec::<String>::new());
    assert_eq!(judge(schema.clone(), old.clone(), None), Vec::<String>::new());
    let wrong = json!({ "size": 2, "peers": [{ "name": "b", "port": 0 }], "once": "b" });
    assert_eq!(
        judge(schema, wrong, Some(&old)),
        [
            "FieldValueInvalid size: Invalid value: \"integer\": size is immutable",
            "FieldValueInvalid peers[0]: Invalid value: \"object\": failed rule: self.port >= oldSelf.port",
            "FieldValueInvalid once: Invalid value: \"string\": failed rule: !oldSelf.hasValue() || oldSelf.value() == self",
            "FieldValueInvalid once: Invalid value: \"string\": failed rule: oldSelf.orValue('a').size() <= self.size()",
        ]
    );
}

#[test]
fn names_with_other_letters_are_escaped() {
    let schema = json!({
        "type": "object",
        "properties": { "a-b": { "type": "integer" }, "in": { "type": "integer" }, "c.d__e": { "type": "integer" } },
        "x-kubernetes-validations": [{
            "rule": "self.a__dash__b == 1 && self.__in__ == 2 && self.c__dot__d__underscores__e == 3",
        }],
    });

    assert_eq!(refused(schema.clone()), Vec::<String>::new());
    assert_eq!(
        judge(schema, json!({ "a-b": 1, "in": 2, "c.d__e": 3 }), None),
        Vec::<String>::new()
    );
}

#[test]
fn refuses_rules_that_cannot_be_judged() {
    let rule = |rule: Value| {
        json!({
            "type": "object",
            "properties": {
                "a": { "type": "object", "properties": { "b": { "type": "string" } } },
                "list": { "type": "array", "items": { "type": "object", "properties": { "c": { "type": "string" } } } },
            },
            "x-kubernetes-validations": [rule],
        })
    };
    for (bad, expected) in [
        (
            json!({ "rule": " " }),
            "rule: Required value: rule is not specified",
        ),
        (json!({ "rule": "self.a.x == ''" }), "undefined field 'x'"),
        (
            json!({ "rule": "self.list.all(i, i.d == '')" }),
            "undefined field 'd'",
        ),
        (
            json!({ "rule": "other == 1" }),
            "undeclared reference to 'other' (in container '')",
        ),
        (
            json!({ "rule": "frobnicate(self)" }),
            "undeclared reference to 'frobnicate' (in container '')",
        ),
        (
            json!({ "rule": "self.a ==" }),
            "compilation failed: ERROR: <input>:1:",
        ),
        (
            json!({ "rule": "true", "message": " " }),
            "message must be non-empty if specified",
        ),
        (
            json!({ "rule": "true", "message": "a\nb" }),
            "message must not contain line breaks",
        ),
        (
            json!({ "rule": "true", "messageExpression": "self.z" }),
            "undefined field 'z'",
        ),
        (
            json!({ "rule": "true", "reason": "Because" }),
            "reason: Unsupported value: \"Because\"",
        ),
        (
            json!({ "rule": "true", "fieldPath": ".a.x" }),
            "fieldPath must be a valid path",
        ),
    ] {
        let found = refused(rule(bad.clone()));
        assert!(
            found.len() == 1 && found[0].contains(expected),
            "{bad}: {found:?}"
        );
    }
    for good in [
        json!({ "rule": "has(self.a.b) && self.list.all(i, i.c != '' && has(self.a))" }),
        json!({ "rule": "true", "fieldPath": ".a['b']" }),
        json!({ "rule": "self.list.map(i, i.c).size() == 0 || optional.of(1).hasValue()" }),
    ] {
        assert_eq!(refused(rule(good)), Vec::<String>::new());
    }
    let mut faults = Vec::new();
    check(&text_schema("self == oldSelf"), false, "s", &mut faults);
    assert!(faults[0].detail.contains("oldSelf cannot be used"), "{faults:?}");
}
