// SPDX-License-Identifier: Apache-2.0

//! Every built-in command.

use super::*;

/// Runs scripts which must pass.
async fn pass(text: &str) -> Bench {
    let mut bench = Bench::new();
    if let Err(error) = bench.run(text).await {
        panic!("{error}\n{}", bench.text());
    }
    bench
}

/// The error of a script's only failing line, without `test.txtar:N: `, with the directory as `$WORK`.
async fn error(text: &str) -> String {
    let mut bench = Bench::new();
    let error = bench.run(text).await.unwrap_err();
    let error = error.replace(bench.dir.path().to_str().unwrap(), "$WORK");
    error.splitn(3, ": ").nth(2).unwrap_or_default().to_owned()
}

#[tokio::test]
async fn files_are_managed() {
    let bench = pass(
        "mkdir d/e\ncp a d\ncmp a d/a\nmv d/a d/b\n! exists d/a\ncd d\nexists b\ncat b ../a\ncd ..\nsymlink l -> a\ncat l\nstdout text\nchmod 0444 a\nexists --readonly a\n! exists --exec a\nchmod 0o755 a\nexists --exec a\n! exists --readonly a\necho hi\ncp stdout a stderr d\nexists d/stdout d/stderr\nrm d nothing\n! exists d\n-- a --\ntext\n",
    )
    .await;

    assert_eq!(bench.state.stdout(), "hi\n");
}

#[tokio::test]
async fn file_errors_are_literal() {
    assert_eq!(
        error("cd nope").await,
        "Chdir $WORK/nope: stat $WORK/nope: no such file or directory"
    );
    assert_eq!(error("chmod 01000 a").await, "invalid mode: 01000");
    assert_eq!(error("chmod 99x a").await, "invalid mode: 99x");
    assert_eq!(
        error("cp a a b\n-- a --\n").await,
        "cp $WORK/b: destination is not a directory"
    );
    assert_eq!(
        error("exists --readonly a\n-- a --\n").await,
        "$WORK/a exists but is writable"
    );
    assert_eq!(
        error("exists --exec a\n-- a --\n").await,
        "$WORK/a exists but is not executable"
    );
    assert_eq!(error("exists b").await, "stat $WORK/b: no such file or directory");
    assert_eq!(error("symlink a b c").await, "invalid usage");
}

#[tokio::test]
async fn comparisons_show_a_diff() {
    let mut bench = Bench::new();

    let error = bench
        .run("cmp a b\n-- a --\n1\n2\n-- b --\n1\n3\n")
        .await
        .unwrap_err();

    assert_eq!(error, "test.txtar:1: cmp a b: a and b differ");
    bench.assert_log("> cmp a b\ndiff a b\n--- a\n+++ b\n@@ -1,2 +1,2 @@\n 1\n-2\n+3\n\n");
}

#[tokio::test]
async fn comparisons_expand_and_ignore_blanks() {
    pass("env A=1\ncmpenv a b\ncmp -w c d\n! cmp -q c d\ncmp -qw c d\n-- a --\nx $A\n-- b --\n${EMPTY}x 1\n-- c --\n a  b\nc\n-- d --\na b\n c\t\n").await;
    pass("echo out\ncmp stdout out\nempty stderr\nempty nothing\nempty -t lines\n-- out --\nout\n-- lines --\n\n\n").await;
    assert_eq!(error("! empty nothing\n").await, "unexpected success");
    let mut bench = Bench::new();
    assert_eq!(
        bench.run("empty a\n-- a --\nx\n").await.unwrap_err(),
        "test.txtar:1: empty a: a is not empty"
    );
    bench.assert_log("> empty a\ndiff a <empty>\n--- a\n+++ <empty>\n@@ -1 +0,0 @@\n-x\n\n");
}

#[tokio::test]
async fn patterns_are_searched() {
    let bench = pass("grep 'b.*\\nc' a\ngrep -q ^a a\ngrep --count=2 b a\necho '10x0 10.0'\nenv IP=10.0\nstdout ' '$IP\n! stdout ^$IP\nstdout ^10.0\n-- a --\na\nxb b\nc\n").await;

    assert!(bench.text().contains("matched: xb b\nc\n> grep -q"));
    assert_eq!(error("grep x a\n-- a --\n").await, "no match for `(?m)x` in a");
    assert_eq!(
        error("grep --count=3 x a\n-- a --\nxx\n").await,
        "found 2 matches for `(?m)x` in a"
    );
    assert_eq!(error("stdout x").await, "no match for `(?m)x` in stdout");
    assert!(
        error("grep a( a\n-- a --\n")
            .await
            .starts_with("error parsing regexp: ")
    );
    assert_eq!(error("grep x").await, "invalid usage");
}

#[tokio::test]
async fn files_are_edited_in_place() {
    let bench = pass("replace a b b a x\\ty '\\n' '\\n' ! f\nsed '^(\\w)(\\w*)$' '$2${1}' g\n-- f --\nab\nx\ty\n-- g --\none\ntwo three\n").await;

    assert_eq!(bench.read("f"), "ba!\n!");
    assert_eq!(bench.read("g"), "neo\ntwo three\n");
    assert_eq!(error("replace a f\n-- f --\n").await, "invalid usage");
    assert_eq!(error("replace '\"' b f\n-- f --\n").await, "invalid syntax");
}

#[tokio::test]
async fn variables_are_set_and_printed() {
    let bench = pass("env A=1 B='x y'\nenv A B C\nstdout '^A=1$'\nstdout '^C=$'\necho ' v '\nenv --from-stdout V W\nenv V W\n").await;

    assert_eq!(bench.state.stdout(), "V=v\nW=v\n");
}

#[tokio::test]
async fn programs_run_in_the_scripts_environment() {
    let mut bench = pass("env PATH=/bin:/usr/bin A=1\nmkdir d\ncd d\nexec sh -c 'echo $A; pwd; env'\nstdout ^1$\nstdout ^$WORK/d$\n! stdout HOME=\n").await;
    assert!(
        bench
            .run("env PATH=\nexec sh\n")
            .await
            .unwrap_err()
            .ends_with("exec: \"sh\": executable file not found in $PATH")
    );

    assert_eq!(
        error("exec sh").await,
        "exec: \"sh\": executable file not found in $PATH"
    );
    assert_eq!(
        error("exec ./nope").await,
        "fork/exec ./nope: no such file or directory"
    );
    pass(
        "env PATH=/bin:/usr/bin\n! exec sh -c nosuchprogram\nstderr '^sh: '\n? exec sh -c 'kill -TERM $$'\n",
    )
    .await;
    let mut bench = Bench::new();
    let error = bench
        .run("env PATH=/bin:/usr/bin\nexec sh -c 'kill -HUP $$'\n")
        .await
        .unwrap_err();
    assert!(error.ends_with(": signal: hangup"), "{error}");
}

#[tokio::test]
async fn sleeping_empties_the_buffers() {
    let bench = pass("echo x\nsleep 1ms\nsleep -5s\n").await;

    assert_eq!(bench.state.stdout(), "");
    assert_eq!(error("sleep 5").await, "time: missing unit in duration \"5\"");
}

#[tokio::test]
async fn help_lists_commands() {
    let bench = pass("help\n").await;
    let text = bench.state.stdout();
    assert!(text.starts_with("\ncommands:\n\nbreak\n\tOpen"), "{text}");
    assert!(
        text.contains("\nexec program [args...] [&]\n\tRun a program"),
        "{text}"
    );

    let bench = pass("help ^cm\n").await;
    let text = bench.state.stdout();
    assert!(
        text.starts_with("cmp [-qw] [--quiet] [--ignore-whitespace] file1 file2\n\tCompare files\n\n\tBy"),
        "{text}"
    );
    assert!(
        text.contains("\n\n\tFlags:\n\t  -w, --ignore-whitespace   Treat"),
        "{text}"
    );

    let bench = pass("help -a cm\n").await;
    assert_eq!(bench.state.stdout(), "cmp\ncmpenv\n");
}

#[tokio::test]
async fn help_explains_conditions() {
    let mut bench = Bench::new().set(|state| state.with_conditions(default_conditions()));

    bench.run("help\n").await.unwrap();
    assert!(bench.state.stdout().starts_with("conditions:\n\n[GOARCH:*]\n\t"));
    bench.run("help [root]\n").await.unwrap();
    assert_eq!(bench.state.stdout(), "[root]\n\tthe user is root\n");
}
