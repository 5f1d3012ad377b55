// SPDX-License-Identifier: Apache-2.0

//! `*` and `!*`.

use super::*;

#[tokio::test]
async fn whole_section_is_repeated() {
    let (outer, outer_calls) = counter("outer", 0);
    let (inner, inner_calls) = counter("inner", 0);
    let mut bench = Bench::new().command(outer).command(inner);

    bench
        .run("outer\n# section\ninner\ncp stdout n\n* grep 'call 3' n\n")
        .await
        .unwrap();

    assert_eq!(*outer_calls.lock().unwrap(), 1);
    assert_eq!(*inner_calls.lock().unwrap(), 3);
}

#[tokio::test]
async fn log_shows_waits_and_result_but_no_lines_again() {
    let (count, _) = counter("count", 3);
    let mut bench = Bench::new().command(count);

    bench.run("# head\n* count \"x\"\n").await.unwrap();

    let text = regexp::compile(r"in \d+\.\d{3}s")
        .unwrap()
        .replace_all(&bench.text(), "in T")
        .into_owned();
    assert_eq!(
        text,
        "# head\n> * count \"x\"\n(command \"* count \\\"x\\\"\" failed, retrying in 5ms...)\n(command \"* count \\\"x\\\"\" failed, retrying in 10ms...)\n[stdout]\ncall 3\n(command \"* count \\\"x\\\"\" succeeded after 2 retries in T)\n"
    );
}

#[tokio::test]
async fn repetition_keeps_expanded_arguments_and_expectations() {
    let (count, calls) = counter("count", 0);
    let mut bench = Bench::new().command(count);

    bench.run("# section\nenv A=1\necho $A\nenv A=2\n! grep nope f\ncount\ncp stdout n\n!* grep 'call [12]$' n\n-- f --\nx\n").await.unwrap();

    assert_eq!(*calls.lock().unwrap(), 3);
    assert!(!bench.text().contains("\n2\n"));
}

#[tokio::test]
async fn skipped_commands_stay_skipped() {
    let (count, _) = counter("count", 3);
    let (never, calls) = counter("never", 0);
    let mut bench = Bench::new().command(count).command(never).set(|state| {
        state.with_conditions(Conditions::from([(
            "no".to_owned(),
            Condition::fixed("does not hold", false),
        )]))
    });

    bench.run("[no] never\n* count\n").await.unwrap();

    assert_eq!(*calls.lock().unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn last_failure_is_reported_with_its_diff() {
    let mut bench = Bench::with_deadline(Duration::from_millis(60));
    let script = Archive::parse("* cmp a b\n-- a --\nx\n-- b --\ny\n");
    let script = ScriptFile::from_archive("test.txtar", script);
    script.unpack(&mut bench.state).unwrap();

    let error = script.run(&mut bench.state).await.unwrap_err();

    let text = error.to_string();
    assert!(
        text.starts_with("test.txtar:1: context deadline exceeded\nlast failure after "),
        "{text}"
    );
    assert!(
        text.ends_with(" retries: test.txtar:1: cmp a b: a and b differ"),
        "{text}"
    );
    assert!(error.failure().unwrap().log().contains("-x\n+y\n"));
}

#[tokio::test(start_paused = true)]
async fn repetition_can_be_bounded() {
    let (count, _) = counter("count", u32::MAX);
    let limit = Some(Duration::from_millis(30));
    let mut bench = Bench::new().command(count).set(|state| {
        state.with_retry(Retry {
            interval: Duration::from_millis(5),
            max_interval: Duration::from_millis(5),
            limit,
        })
    });

    let error = bench.run("* count\n").await.unwrap_err();

    assert!(
        error.starts_with("test.txtar:1: gave up after 30ms\nlast failure after "),
        "{error}"
    );
}

#[tokio::test]
async fn wrong_flags_are_not_repeated() {
    let mut bench = Bench::new();

    assert_eq!(
        bench.run("* cmp --nope\n").await.unwrap_err(),
        "test.txtar:1: cmp --nope: unknown flag: --nope"
    );
    assert_eq!(
        bench.run("* nope\n").await.unwrap_err(),
        "test.txtar:1: nope: unknown command"
    );
}

#[tokio::test(start_paused = true)]
async fn failure_of_an_earlier_command_counts() {
    let mut bench = Bench::with_deadline(Duration::from_millis(60));

    let error = bench
        .run("# section\nmv a b\n* grep x b\n-- a --\ny\n")
        .await
        .unwrap_err();

    assert!(
        error.starts_with("test.txtar:3: context deadline exceeded\n"),
        "{error}"
    );
    assert!(
        error.contains("retries: test.txtar:2: mv a b: rename "),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn waits_double_up_to_the_longest() {
    let (count, _) = counter("count", 6);
    let mut bench = Bench::new().command(count);

    bench.run("* count\n").await.unwrap();

    let text = bench.text();
    let waits: Vec<&str> = text
        .lines()
        .filter_map(|line| line.split_once("retrying in ")?.1.strip_suffix("...)"))
        .collect();
    assert_eq!(waits, ["5ms", "10ms", "20ms", "20ms", "20ms"]);
}

#[tokio::test(start_paused = true)]
async fn repetition_ends_at_what_no_repetition_mends() {
    let (count, _) = counter("count", u32::MAX);
    let calls = Mutex::new(0);
    let breaks = function(
        Spec::new("breaks", "Is unknown from the third call on"),
        move |_, _| {
            let mut calls = calls.lock().unwrap();
            *calls += 1;
            if *calls < 3 {
                Ok(Outcome::stdout(""))
            } else {
                Err(CommandError::Unknown)
            }
        },
    );
    let mut bench = Bench::with_deadline(Duration::from_secs(60))
        .command(count)
        .command(breaks);

    let error = bench.run("# section\nbreaks\n* count\n").await.unwrap_err();

    assert_eq!(error, "test.txtar:2: breaks: unknown command");
}
