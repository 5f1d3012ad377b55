// SPDX-License-Identifier: Apache-2.0

//! Update mode.

use super::*;

async fn updated(text: &str) -> Result<String, String> {
    let mut bench = Bench::with_deadline(Duration::from_secs(30)).set(State::update_mode);
    let path = bench.dir.path().join("script.txtar");
    std::fs::write(&path, text).unwrap();
    let mut script = ScriptFile::load(&path).unwrap();
    script.unpack(&mut bench.state).unwrap();
    script
        .run(&mut bench.state)
        .await
        .map_err(|error| error.to_string())?;
    script.write_back(&bench.state).unwrap();
    Ok(std::fs::read_to_string(&path).unwrap())
}

#[tokio::test]
async fn expected_files_are_replaced() {
    let text = updated("echo new\ncmp stdout want\n-- want --\nold\n-- other --\nstays\n")
        .await
        .unwrap();

    assert_eq!(
        text,
        "echo new\ncmp stdout want\n-- want --\nnew\n-- other --\nstays\n"
    );
}

#[tokio::test]
async fn the_file_of_the_archive_is_the_expected_one() {
    let text = updated("echo new\ncp stdout out\ncmp want out\n-- want --\nold\n")
        .await
        .unwrap();

    assert_eq!(text, "echo new\ncp stdout out\ncmp want out\n-- want --\nnew\n");
}

#[tokio::test]
async fn empty_files_are_not_updated() {
    assert_eq!(
        updated("echo new\ncmp stdout want\n-- want --\n")
            .await
            .unwrap_err(),
        "script.txtar:2: cmp stdout want: stdout and want differ"
    );
}

#[tokio::test]
async fn repeated_comparisons_are_updated_after_two_retries() {
    let text = updated("# section\necho x\n* cmp stdout want\n-- want --\nold\n")
        .await
        .unwrap();

    assert_eq!(text, "# section\necho x\n* cmp stdout want\n-- want --\nx\n");
}
