// SPDX-License-Identifier: Apache-2.0

use serde_json::json;

use super::*;

#[track_caller]
fn checked(schema: Value, value: Value, old: Option<&Value>) -> Vec<String> {
    let mut faults = Vec::new();
    Rules::of(&schema).check(&schema, &value, old, &mut faults);
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
fn evaluates_expressions() {
    for (rule, value, holds) in [
        ("self == '' || isIP(self)", "fd00::1", true),
        ("self == '' || isIP(self)", "", true),
        ("self == '' || isIP(self)", "10.0.0.256", false),
        ("isIP(self)", "::ffff:10.0.0.1", false),
        ("isCIDR(self)", "10.0.0.0/8", true),
        ("isCIDR(self)", "10.0.0.0", false),
        ("self.matches('^[a-z]+$') && self.size() <= 3", "abc", true),
        (
            "self.lowerAscii() == 'abc' && self.substring(1) == 'BC'",
            "ABC",
            true,
        ),
        ("self in ['a', 'b']", "b", true),
        ("['a', 'b'].exists_one(x, x == self)", "a", true),
    ] {
        assert_eq!(refused(text_schema(rule)), Vec::<String>::new(), "{rule}");
        let found = checked(text_schema(rule), value.into(), None);
        assert_eq!(found.is_empty(), holds, "{rule} {value:?}: {found:?}");
    }
}

#[test]
fn words_faults_by_message_and_rule() {
    let schema = |message: &str| {
        let rule = json!({ "rule": "self.least <= self.most", "message": message });
        let fields = json!({ "least": { "type": "integer" }, "most": { "type": "integer" } });
        let range = json!({ "type": "object", "properties": fields, "x-kubernetes-validations": [rule] });
        json!({ "type": "object", "properties": { "range": range } })
    };
    let fault = |message: &str, range: Value| checked(schema(message), json!({ "range": range }), None);
    let field = "FieldValueInvalid range: Invalid value: \"object\"";

    let wrong = json!({ "least": 2, "most": 1 });
    assert_eq!(
        fault("", wrong.clone()),
        [format!("{field}: failed rule: self.least <= self.most")]
    );
    assert_eq!(fault("too high", wrong), [format!("{field}: too high")]);
    assert_eq!(
        fault("", json!({ "least": 2 })),
        [format!(
            "{field}: No such key: most evaluating rule: self.least <= self.most"
        )]
    );
}

#[test]
fn rules_about_changes_wait_for_a_change() {
    let port = json!({
        "type": "object",
        "properties": { "name": { "type": "string" }, "port": { "type": "integer" } },
        "x-kubernetes-validations": [{ "rule": "self.port >= oldSelf.port" }],
    });
    let schema = json!({ "type": "object", "properties": {
        "size": { "type": "integer", "x-kubernetes-validations": [{ "rule": "self == oldSelf", "message": "size is immutable" }] },
        "peers": { "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": port },
    } });
    let old = json!({ "size": 1, "peers": [{ "name": "a", "port": 5 }, { "name": "b", "port": 1 }] });

    let fine = json!({ "size": 1, "peers": [{ "name": "b", "port": 2 }, { "name": "c", "port": 0 }] });
    assert_eq!(checked(schema.clone(), fine, Some(&old)), Vec::<String>::new());
    assert_eq!(checked(schema.clone(), old.clone(), None), Vec::<String>::new());
    let wrong = json!({ "size": 2, "peers": [{ "name": "b", "port": 0 }] });
    assert_eq!(
        checked(schema, wrong, Some(&old)),
        [
            "FieldValueInvalid size: Invalid value: \"integer\": size is immutable",
            "FieldValueInvalid peers[0]: Invalid value: \"object\": failed rule: self.port >= oldSelf.port",
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
        checked(schema, json!({ "a-b": 1, "in": 2, "c.d__e": 3 }), None),
        Vec::<String>::new()
    );
}

#[test]
fn refuses_rules_that_cannot_be_evaluated() {
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
            json!({ "rule": "true", "message": "a\nb" }),
            "message must not contain line breaks",
        ),
        (
            json!({ "rule": "true", "reason": "FieldValueInvalid" }),
            "reason: Forbidden: not supported",
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
        json!({ "rule": "self.list.map(i, i.c).size() == 0 || optional.of(1).hasValue()" }),
    ] {
        assert_eq!(refused(rule(good)), Vec::<String>::new());
    }
    let mut faults = Vec::new();
    check(&text_schema("self == oldSelf"), false, "s", &mut faults);
    assert!(faults[0].detail.contains("oldSelf cannot be used"), "{faults:?}");
}
