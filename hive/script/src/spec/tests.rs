// SPDX-License-Identifier: Apache-2.0

//! Flags and help texts.

use super::*;

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn show() -> Spec {
    Spec::new("db/show", "Show a table")
        .args("table")
        .flag(Flag::string("out", "", "File to write").short('o'))
        .flag(Flag::bool("quiet", "Say nothing").short('q'))
        .flag(Flag::list("columns", [] as [&str; 0], "Columns to show"))
        .flag(Flag::int("count", 3, "How many"))
        .flag(Flag::duration("timeout", Duration::from_secs(5), "How long"))
}

#[test]
fn flags_stand_anywhere() {
    let call = show()
        .parse(&words(
            "a --columns=A,B -qo file b --timeout 1m --columns C --count=0x_1_0 -- -z",
        ))
        .unwrap();

    assert_eq!(call.args(), ["a", "b", "-z"]);
    assert!(call.bool("quiet"));
    assert_eq!(call.string("out"), "file");
    assert_eq!(call.list("columns"), ["A", "B", "C"]);
    assert_eq!(call.int("count"), 16);
    assert_eq!(call.duration("timeout"), Duration::from_secs(60));
    assert!(call.is_set("count"));
}

#[test]
fn lists_may_hold_quoted_commas() {
    let columns = |text: &str| {
        let call = show().parse(&["--columns".to_owned(), text.to_owned()]).unwrap();
        call.list("columns").to_vec()
    };

    assert_eq!(columns(r#"A,"B, ""b""",C d"#), ["A", r#"B, "b""#, "C d"]);
    assert_eq!(columns(",x"), ["", "x"]);
    assert_eq!(columns(""), [""; 0]);
}

#[test]
fn defaults_hold_for_flags_not_given() {
    let call = show().parse(&words("-ofile x")).unwrap();

    assert_eq!(call.string("out"), "file");
    assert_eq!(call.int("count"), 3);
    assert!(!call.is_set("count"));
    assert!(!call.bool("quiet"));
}

#[test]
fn bad_flags_are_named() {
    let error = |text: &str| show().parse(&words(text)).unwrap_err().to_string();

    assert_eq!(error("--nope"), "unknown flag: --nope");
    assert_eq!(error("-qx"), "unknown shorthand flag: 'x' in -x");
    assert_eq!(error("--out"), "flag needs an argument: --out");
    assert_eq!(error("-o"), "flag needs an argument: 'o' in -o");
    assert_eq!(
        error("--count=x"),
        r#"invalid argument "x" for "--count" flag: strconv.ParseInt: parsing "x": invalid syntax"#
    );
    assert!(error("--count=9223372036854775808").ends_with("value out of range"));
    assert!(error("--count=1__0").ends_with("invalid syntax"));
}

#[test]
fn a_command_without_flags_takes_everything() {
    let echo = Spec::new("echo", "Say");

    assert_eq!(echo.parse(&words("-x --y")).unwrap().args(), ["-x", "--y"]);
    assert_eq!(echo.parse(&words("-- --a")).unwrap().args(), ["--a"]);
}

#[test]
fn help_lists_flags_in_columns() {
    let spec = Spec::new("x", "Do x")
        .args("file")
        .detail("Some words.")
        .flag(Flag::string("out", "o.txt", "Where").short('o'))
        .flag(Flag::bool("quiet", "Hush"));

    assert_eq!(
        spec.help(true),
        "x [-o] [--out=string] [--quiet] file\n\tDo x\n\n\tSome words.\n\n\tFlags:\n\t  -o, --out string   Where (default \"o.txt\")\n\t      --quiet        Hush\n\t\n"
    );
    assert_eq!(spec.help(false), "x [-o] [--out=string] [--quiet] file\n\tDo x\n");
}

#[test]
fn long_details_are_wrapped() {
    let lines = usage::wrap(&"word ".repeat(30));

    assert!(lines.iter().all(|line| line.chars().count() <= 60), "{lines:?}");
}

#[test]
fn the_regexp_is_the_first_argument_that_is_no_flag() {
    let grep = Spec::new("grep", "Search").regexp();

    assert_eq!(grep.regexp_argument(&words("-q --count=1 re file")), Some(2));
    assert_eq!(grep.regexp_argument(&words("-q -- -re file")), Some(2));
    assert_eq!(Spec::new("x", "").regexp_argument(&words("re")), None);
}
