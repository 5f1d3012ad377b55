// SPDX-License-Identifier: Apache-2.0

//! Layout and quoting of both styles.

use serde::Serialize;
use serde_json::json;

use super::*;

#[test]
fn v3_nests_lists_and_maps() {
    let value = json!({
        "a": [{"b": {"c": 1}, "d": [2, [3, 4]]}],
        "empty": [], "none": {}, "nil": null,
    });

    let text = emit_v3(&value).unwrap();

    assert_eq!(
        text,
        "a:\n    - b:\n        c: 1\n      d:\n        - 2\n        - - 3\n          - 4\nempty: []\nnone: {}\nnil: null\n"
    );
}

#[test]
fn v2_sorts_and_keeps_lists_at_their_key() {
    let value = json!({
        "kind": "List",
        "items": [{"metadata": {"name": "x", "labels": {"b10": "1", "b9": "2", "a": "true"}}, "args": [["q"]]}],
    });

    let text = emit_v2(&value).unwrap();

    assert_eq!(
        text,
        "items:\n- args:\n  - - q\n  metadata:\n    labels:\n      a: \"true\"\n      b9: \"2\"\n      b10: \"1\"\n    name: x\nkind: List\n"
    );
}

#[test]
fn quotes_what_would_be_misread() {
    for (text, expected) in [
        ("", "\"\""),
        ("plain text", "plain text"),
        ("10.20.0.5:8080/TCP", "10.20.0.5:8080/TCP"),
        ("[fd00::1]:80/TCP", "'[fd00::1]:80/TCP'"),
        ("fd00::1", "fd00::1"),
        ("fd00::", "'fd00::'"),
        ("a: b", "'a: b'"),
        ("a #b", "'a #b'"),
        ("it's", "it's"),
        ("- x", "'- x'"),
        ("-x", "-x"),
        ("*", "'*'"),
        ("<unset>", "<unset>"),
        ("true", "\"true\""),
        ("no", "\"no\""),
        ("null", "\"null\""),
        ("12", "\"12\""),
        ("1_000", "\"1_000\""),
        ("0x1f", "\"0x1f\""),
        ("1e3", "\"1e3\""),
        ("1.5", "\"1.5\""),
        ("1:30", "\"1:30\""),
        ("5s", "5s"),
        ("2026-01-02", "\"2026-01-02\""),
        ("2026-01-02T03:04:05.5Z", "\"2026-01-02T03:04:05.5Z\""),
        (" lead", "' lead'"),
        ("trail ", "'trail '"),
        ("tab\there", "\"tab\\there\""),
        ("bell\u{7}", "\"bell\\a\""),
        ("---", "'---'"),
        ("@x", "'@x'"),
        ("grüße", "grüße"),
        ("'q'", "'''q'''"),
    ] {
        assert_eq!(emit_v3(text).unwrap(), format!("{expected}\n"), "{text:?}");
    }
}

#[test]
fn lines_become_literals() {
    let value = json!({"x": {"a": "one\ntwo\n", "b": "one\n\ntwo", "c": "end\n\n", "d": " lead\nx"}, "k\ny": "trail \nx "});

    let text = emit_v3(&value).unwrap();

    assert_eq!(
        text,
        "x:\n    a: |\n        one\n        two\n    b: |-\n        one\n\n        two\n    c: |+\n        end\n\n    d: |4-\n         lead\n        x\n? |-\n  k\n  y\n: \"trail \\nx \"\n"
    );
}

#[test]
fn v2_folds_long_lines() {
    let words = "word ".repeat(20);
    let words = words.trim_end();

    let text = emit_v2(&json!({"m": {"k": words, "q": format!("x: {words}")}})).unwrap();

    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[1], format!("  k: {}word", "word ".repeat(15)));
    assert_eq!(lines[2], "    word word word word");
    assert!(lines[3].starts_with("  q: 'x: word"));
    assert!(lines[4].starts_with("    word"));
    assert_eq!(emit_v3(words).unwrap(), format!("{words}\n"));
}

#[test]
fn times_are_plain_and_fields_keep_their_order() {
    #[derive(Serialize)]
    struct Status {
        updated: Plain<&'static str>,
        id: u64,
        kind: Kind,
        ratio: f64,
        error: Option<String>,
    }
    #[derive(Serialize)]
    enum Kind {
        Done,
    }

    let status = Status {
        updated: Plain("2026-01-02T03:04:05Z"),
        id: 7,
        kind: Kind::Done,
        ratio: 0.5,
        error: None,
    };

    assert_eq!(
        emit_v3(&status).unwrap(),
        "updated: 2026-01-02T03:04:05Z\nid: 7\nkind: Done\nratio: 0.5\nerror: null\n"
    );
    assert_eq!(
        serde_json::to_value(&status).unwrap()["updated"],
        "2026-01-02T03:04:05Z"
    );
}

#[test]
fn floats_are_as_go_prints_them() {
    for (value, text) in [
        (1.0, "1"),
        (0.1, "0.1"),
        (1e21, "1e+21"),
        (1e20, "100000000000000000000"),
        (1e-5, "1e-05"),
        (f64::INFINITY, ".inf"),
    ] {
        assert_eq!(emit_v3(&value).unwrap(), format!("{text}\n"));
    }
}

#[test]
fn values_of_explicit_keys_begin_in_the_line_of_the_colon() {
    let key = "k".repeat(130);

    let text = emit_v3(&json!({ &key: [["a", "b"]] })).unwrap();

    assert_eq!(text, format!("? {key}\n:   - - a\n      - b\n"));
}
