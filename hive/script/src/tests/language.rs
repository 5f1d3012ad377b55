// SPDX-License-Identifier: Apache-2.0

//! Lines, prefixes, conditions, buffers, sections, background commands.

use super::*;

#[tokio::test]
async fn failing_command_is_reported_with_place_and_arguments() {
    let mut bench = Bench::new();

    let error = bench
        .run("echo a\n\ncmp -q a 'no such'\n-- a --\n")
        .await
        .unwrap_err();

    let path = bench.dir.path().join("no such");
    assert_eq!(
        error,
        format!(
            "test.txtar:3: cmp a 'no such': open {}: no such file or directory",
            path.display()
        )
    );
}

#[tokio::test]
async fn prefixes_turn_failures_around() {
    let mut bench = Bench::new();

    bench
        .run("! grep x a\n? grep x a\n? echo hi\nstdout hi\n-- a --\n")
        .await
        .unwrap();

    assert_eq!(
        bench.run("! echo x\n").await.unwrap_err(),
        "test.txtar:1: echo x: unexpected success"
    );
}

#[tokio::test]
async fn some_failures_are_never_tolerated() {
    for (line, error) in [
        ("? nope a", "nope a: unknown command"),
        ("! cmp --nope a b", "cmp --nope a b: unknown flag: --nope"),
        ("? grep -x a b", "grep -x a b: unknown shorthand flag: 'x' in -x"),
        ("? echo a &", "echo a: command cannot be run in background"),
    ] {
        let mut bench = Bench::new();
        assert_eq!(
            bench.run(line).await.unwrap_err(),
            format!("test.txtar:1: {error}")
        );
    }
}

#[tokio::test]
async fn syntax_errors_carry_the_line() {
    let mut bench = Bench::new();

    assert_eq!(
        bench.run("# head\n! ! x\n").await.unwrap_err(),
        "test.txtar:2: parse error: duplicated '!', '?', '*' or '!*' token"
    );
    assert_eq!(
        bench.run("[nope] x\n").await.unwrap_err(),
        "test.txtar:1: unknown condition \"nope\""
    );
}

#[tokio::test]
async fn conditions_guard_lines() {
    let mut bench = Bench::new().set(|state| {
        let mut conditions = default_conditions();
        conditions.insert("yes".to_owned(), Condition::fixed("holds", true));
        state.with_conditions(conditions)
    });

    bench
        .run("[!yes] nope\n[yes] [!GOOS:plan9] echo ok\n")
        .await
        .unwrap();

    bench.assert_log("> [!yes] nope\n[condition not met]\n> [yes] [!GOOS:plan9] echo ok\n[stdout]\nok\n");
}

#[tokio::test]
async fn only_commands_with_output_change_the_buffers() {
    let mut bench = Bench::new();

    bench
        .run(
            "echo one\nmkdir d\ngrep one a\nstdout one\ncat empty\nempty stdout\n-- a --\none\n-- empty --\n",
        )
        .await
        .unwrap();

    assert_eq!(bench.state.stdout(), "");
}

#[tokio::test]
async fn tolerated_failure_of_a_command_with_output_is_shown() {
    let mut bench = Bench::new();

    bench.run("env PATH=/bin:/usr/bin\n! exec sh -c 'echo out; echo err >&2; exit 3'\nstdout out\nstderr err\n! grep x a\n-- a --\n").await.unwrap();

    let text = bench.text();
    assert!(
        text.contains("[stdout]\nout\n[stderr]\nerr\n[exit status 3]\n> stdout out\nmatched: out\n"),
        "{text}"
    );
    assert!(text.ends_with("> ! grep x a\n"), "{text}");
}

#[tokio::test]
async fn sections_show_their_duration() {
    let mut bench = Bench::new();

    bench
        .run("echo a\n# first\necho b\n# second\n#third\n  # no section\necho c\n")
        .await
        .unwrap();

    let text = regexp::compile(r"\(\d+\.\d{3}s\)")
        .unwrap()
        .replace_all(&bench.text(), "(T)")
        .into_owned();
    assert_eq!(
        text,
        "> echo a\n[stdout]\na\n# first (T)\n> echo b\n[stdout]\nb\n# second\n#third (T)\n> echo c\n[stdout]\nc\n"
    );
}

#[tokio::test]
async fn quiet_engines_drop_successful_sections() {
    let mut bench = Bench::new().set(State::quiet);

    bench
        .run("# good\necho a\n# bad\necho b\ngrep x\n")
        .await
        .unwrap_err();

    let text = bench.text();
    assert!(
        !text.contains("echo a") && text.contains("# good") && text.contains("> echo b\n"),
        "{text}"
    );
}

#[tokio::test]
async fn stop_and_skip_end_the_script() {
    let mut bench = Bench::new();

    assert_eq!(
        bench.run("echo a\nstop 'enough of it'\nnope\n").await,
        Ok(Ending::Stopped("enough of it".to_owned()))
    );
    assert!(bench.text().ends_with("stop: enough of it\n"));
    assert_eq!(bench.run("! skip\n").await, Ok(Ending::Skipped(String::new())));
}

#[tokio::test]
async fn background_output_comes_with_wait_in_order_of_start() {
    let mut bench = Bench::new();

    bench
        .run("env PATH=/bin:/usr/bin\necho before\nexec sh -c 'sleep 0.05; echo one' &\nempty stdout\n! exec sh -c 'echo two; exit 1' &\necho other\nwait\nstdout '^one$'\nstdout '^two$'\n")
        .await
        .unwrap();

    assert_eq!(bench.state.stdout(), "one\ntwo\n");
    assert!(
        bench
            .text()
            .contains("> wait\n[background] exec sh -c 'sleep 0.05; echo one'\n[stdout]\none\n[background] exec sh -c 'echo two; exit 1'\n[stdout]\ntwo\n[exit status 1]\n")
    );
}

#[tokio::test]
async fn wait_joins_failures_and_ignores_its_own_prefix() {
    let mut bench = Bench::new();

    let error = bench
        .run("env PATH=/bin:/usr/bin\nexec sh -c 'exit 2' &\n! exec true &\n! wait\n")
        .await
        .unwrap_err();

    assert_eq!(
        error,
        "test.txtar:4: wait: test.txtar:2: exec sh -c 'exit 2': exit status 2\ntest.txtar:3: exec true: unexpected success"
    );
}

#[tokio::test]
async fn background_commands_end_with_the_script() {
    let mut bench = Bench::new();
    let started = std::time::Instant::now();

    bench
        .run("env PATH=/bin:/usr/bin\nexec sleep 30 &\nsleep 30s &\necho done\n")
        .await
        .unwrap();

    assert!(started.elapsed() < Duration::from_secs(25));
}

#[tokio::test(start_paused = true)]
async fn interruption_satisfies_no_prefix() {
    for line in ["sleep 10s", "! sleep 10s", "? sleep 10s", "!* sleep 10s"] {
        let mut bench = Bench::with_deadline(Duration::from_millis(30));
        let error = bench.run(line).await.unwrap_err();
        assert!(error.contains("context deadline exceeded"), "{line}: {error}");
    }
    let lifetime = Lifetime::unlimited();
    lifetime.cancel();
    let mut bench = Bench::with_lifetime(lifetime);
    assert_eq!(
        bench.run("echo a\n").await.unwrap_err(),
        "test.txtar:1: context canceled"
    );
}

#[tokio::test(start_paused = true)]
async fn command_that_ignores_the_end_is_dropped() {
    struct Stuck(Spec);
    #[async_trait::async_trait]
    impl Command for Stuck {
        fn spec(&self) -> &Spec {
            &self.0
        }
        async fn run(&self, _: &mut Context<'_>, _: Invocation) -> Result<Outcome, CommandError> {
            std::future::pending().await
        }
    }
    let mut bench = Bench::with_deadline(Duration::from_secs(10))
        .command(Arc::new(Stuck(Spec::new("stuck", "Wait without end"))));

    assert_eq!(
        bench.run("stuck\n").await.unwrap_err(),
        "test.txtar:1: stuck: context deadline exceeded"
    );
}

#[tokio::test]
async fn help_flag_works_for_every_command() {
    let mut bench = Bench::new();

    bench.run("echo -h\nstdout '^echo strings\\.\\.\\.$'\ncmp --help\nstdout -- '--quiet'\necho -x\nstdout '^-x$'\necho -- --a\nstdout '^--a$'\n").await.unwrap();
}

#[tokio::test]
async fn archive_files_stay_in_the_work_directory() {
    let mut bench = Bench::new();

    assert_eq!(
        bench.run("-- ../x --\n").await.unwrap_err(),
        "file `../x` of the archive lies outside of the work directory"
    );
    bench
        .run("cat sub/$USER'x'\n-- sub/f --\none\n-- sub/f --\ntwo\n")
        .await
        .unwrap_err();
    bench
        .run("cat sub/f\nstdout two\n-- sub/f --\none\n-- ${WORK}/sub/f --\ntwo\n")
        .await
        .unwrap();
}

#[tokio::test]
async fn variables_of_a_script_are_listed_in_order() {
    let mut bench = Bench::new();

    bench.run("env X=1\nenv\n").await.unwrap();

    let names: Vec<&str> = bench
        .state
        .stdout()
        .lines()
        .filter_map(|line| line.split('=').next())
        .collect();
    assert_eq!(names, ["DATADIR", "PWD", "WORK", "TMPDIR", "X"]);
}

#[tokio::test]
async fn lines_of_a_prompt_open_no_other_prompt() {
    let mut bench = Bench::new().set(State::break_on_error);

    let error = bench.state.context().run_line("nope").await.unwrap_err();

    assert!(error.to_string().ends_with("nope: unknown command"), "{error}");
    bench.assert_log("> nope\n");
}

#[tokio::test(start_paused = true)]
async fn commands_for_people_may_take_longer_than_the_script() {
    struct Person(Spec);
    #[async_trait::async_trait]
    impl Command for Person {
        fn spec(&self) -> &Spec {
            &self.0
        }
        async fn run(&self, _: &mut Context<'_>, _: Invocation) -> Result<Outcome, CommandError> {
            tokio::time::sleep(Duration::from_secs(60)).await;
            Ok(Outcome::stdout("done\n"))
        }
    }
    let mut bench = Bench::with_deadline(Duration::from_secs(10)).command(Arc::new(Person(
        Spec::new("person", "Wait for a person").untimed(),
    )));

    bench.run("person\n").await.unwrap();

    assert_eq!(bench.state.stdout(), "done\n");
}
