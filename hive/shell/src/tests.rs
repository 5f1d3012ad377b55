// SPDX-License-Identifier: Apache-2.0

//! Server and client together.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hive_script::{
    Command, CommandError, Context, Flag, Invocation, Outcome, Output, Spec, function, shell_commands,
};
use skep_listen::BindError;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::*;

struct Shell {
    _dir: TempDir,
    path: PathBuf,
    token: CancellationToken,
    task: JoinHandle<()>,
    cancelled: Arc<AtomicBool>,
}

/// Logs until it is cancelled.
struct Watch(Spec, Arc<AtomicBool>);

#[async_trait::async_trait]
impl Command for Watch {
    fn spec(&self) -> &Spec {
        &self.0
    }
    async fn run(&self, cx: &mut Context<'_>, _: Invocation) -> Result<Outcome, CommandError> {
        cx.log("started\n");
        let interruption = cx.interrupted().await;
        self.1.store(true, Ordering::SeqCst);
        Err(interruption.into())
    }
    async fn complete(&self, _: &mut Context<'_>, partial: &str) -> Vec<String> {
        vec![format!("{partial}-one"), format!("{partial}-two")]
    }
}

impl Shell {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run/shell.sock");
        let cancelled = Arc::new(AtomicBool::new(false));
        let mut commands = shell_commands();
        for command in [
            function(Spec::new("greet", "Say hello"), |cx, inv| {
                cx.log("greeting\n");
                Ok(Outcome::stdout(format!("hello {}", inv.args().join(","))))
            }),
            function(
                Spec::new("list", "List")
                    .flag(Flag::string("out", "", "File").short('o'))
                    .flag(Flag::string("format", "table", "Format").short('f')),
                |cx, inv| match inv.string("out") {
                    "" => Ok(Outcome::stdout(inv.string("format"))),
                    file => {
                        cx.log(format!("to {}\n", cx.path(file).display()));
                        Ok(Outcome::Silent)
                    }
                },
            ),
            function(
                Spec::new("dump", "Dump").flag(Flag::string("out", "", "File").short('o')),
                |_, _| Ok(Outcome::Silent),
            ),
            function(Spec::new("fail", "Fail"), |_, _| Err("it failed".into())),
            function(Spec::new("check", "Check"), |_, _| {
                let output = Output {
                    stdout: "one is bad\n".to_owned(),
                    stderr: String::new(),
                };
                Err(CommandError::new("not all is well").with_output(output))
            }),
            function(Spec::new("panic", "Panic"), |_, _| panic!("on purpose")),
            Arc::new(Watch(Spec::new("watch", "Wait"), cancelled.clone())),
        ] {
            commands.insert(command.spec().name().to_owned(), command);
        }
        let server = Server::bind(&path, commands).unwrap();
        let token = CancellationToken::new();
        let task = tokio::spawn(server.serve(token.clone()));
        Self {
            _dir: dir,
            path,
            token,
            task,
            cancelled,
        }
    }

    async fn run(&self, line: &str) -> (String, Result<(), ClientError>) {
        let mut client = Client::connect(&self.path).await.unwrap();
        let mut text = String::new();
        let result = client.run(line, |chunk| text.push_str(chunk)).await;
        (text, result)
    }

    async fn wait_cancelled(&self) {
        let cancelled = async {
            while !self.cancelled.load(Ordering::SeqCst) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), cancelled)
            .await
            .expect("the command is cancelled");
    }
}

#[tokio::test]
async fn a_format_is_not_taken_for_the_file_to_write_to() {
    let shell = Shell::start();

    for (line, hint) in [
        (
            "list -o json",
            "use -f json (or -o ./json for a file of that name)",
        ),
        ("list --out=yaml", "use -f yaml"),
        ("dump -ojson", "this command has one format"),
    ] {
        let (_, result) = shell.run(line).await;
        let error = result.unwrap_err().to_string();
        assert!(error.contains("-o takes a file, not a format"), "{line}: {error}");
        assert!(error.contains(hint), "{line}: {error}");
    }
    let (text, result) = shell.run("list -f json").await;
    assert!(result.is_ok() && text.contains("json"), "{text}");
    for file in ["./json", "json.out"] {
        let (text, result) = shell.run(&format!("list -o {file}")).await;
        assert!(result.is_ok(), "{file}");
        assert_eq!(text, format!("to /tmp/{}\n", file.trim_start_matches("./")));
    }
}

#[tokio::test]
async fn socket_is_private_and_removed_at_the_end() {
    let shell = Shell::start();

    assert_eq!(shell.path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert!(matches!(
        Server::bind(&shell.path, shell_commands()),
        Err(BindError::InUse { .. })
    ));

    shell.token.cancel();
    shell.task.await.unwrap();
    assert!(!shell.path.exists());
}

#[tokio::test]
async fn dead_socket_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());

    Server::bind(&path, shell_commands()).unwrap();
}

#[tokio::test]
async fn file_that_is_no_socket_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    std::fs::write(&path, "precious").unwrap();

    let error = Server::bind(&path, shell_commands()).unwrap_err();

    assert_eq!(
        error.to_string(),
        format!("{} exists and is not a socket", path.display())
    );
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
}

#[tokio::test]
async fn relative_paths_are_refused_since_the_directory_is_unknown() {
    let shell = Shell::start();
    let file = shell.path.with_file_name("rows.yaml");
    std::fs::write(&file, "a row\n").unwrap();

    let (_, relative) = shell.run("cat rows.yaml").await;
    let (absolute, result) = shell.run(&format!("cat {}", file.display())).await;

    let error = relative.unwrap_err().to_string();
    assert!(error.contains("the path must be absolute"), "{error}");
    assert!(absolute.contains("a row"), "{absolute}");
    result.unwrap();
}

#[tokio::test]
async fn commands_stream_their_output() {
    let shell = Shell::start();
    let mut stream = UnixStream::connect(&shell.path).await.unwrap();

    stream
        .write_all(b"greet a 'b c'\n# nothing\nfail\nnope\nexec id\nquit\n")
        .await
        .unwrap();

    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    assert_eq!(
        text,
        "greeting\n[stdout]\nhello a,b c<<end>>\n<<end>>\n<stdin>:0: fail: it failed<<error>>\n\
         <stdin>:0: nope: unknown command<<error>>\n<stdin>:0: exec id: unknown command<<error>>\n"
    );
}

#[tokio::test]
async fn client_strips_markers_and_returns_errors() {
    let shell = Shell::start();

    let (text, result) = shell.run("greet x").await;
    assert_eq!(text, "greeting\nhello x");
    result.unwrap();

    let (_, result) = shell.run("fail").await;
    assert_eq!(result.unwrap_err().to_string(), "<stdin>:0: fail: it failed");

    let (text, result) = shell.run("check").await;
    assert_eq!(text, "one is bad\n");
    assert_eq!(
        result.unwrap_err().to_string(),
        "<stdin>:0: check: not all is well"
    );
}

#[tokio::test]
async fn panic_ends_the_command_only() {
    let shell = Shell::start();
    let mut client = Client::connect(&shell.path).await.unwrap();
    let mut text = String::new();

    client.run("panic", |chunk| text.push_str(chunk)).await.unwrap();
    client.run("greet x", |chunk| text.push_str(chunk)).await.unwrap();

    assert_eq!(text, "PANIC: on purpose\ngreeting\nhello x");
}

#[tokio::test]
async fn connections_do_not_wait_for_each_other() {
    let shell = Shell::start();
    let mut first = UnixStream::connect(&shell.path).await.unwrap();
    first.write_all(b"watch\n").await.unwrap();
    let mut started = [0; 8];
    first.read_exact(&mut started).await.unwrap();

    let (text, _) = shell.run("greet x").await;

    assert_eq!((&started, text.as_str()), (b"started\n", "greeting\nhello x"));
}

#[tokio::test]
async fn hanging_up_cancels_the_command() {
    let shell = Shell::start();
    let mut stream = UnixStream::connect(&shell.path).await.unwrap();
    stream.write_all(b"watch\n").await.unwrap();
    let mut started = [0; 8];
    stream.read_exact(&mut started).await.unwrap();

    drop(stream);

    shell.wait_cancelled().await;
}

#[tokio::test]
async fn answer_reaches_a_client_that_sends_no_more() {
    let shell = Shell::start();
    let mut stream = UnixStream::connect(&shell.path).await.unwrap();

    stream.write_all(b"greet x").await.unwrap();
    stream.shutdown().await.unwrap();

    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "greeting\n[stdout]\nhello x<<end>>\n");
}

#[tokio::test]
async fn a_line_that_is_too_long_is_not_run_in_part() {
    let shell = Shell::start();
    let mut stream = UnixStream::connect(&shell.path).await.unwrap();
    let line = format!("greet {}", "x".repeat((1 << 20) - 5));
    stream.write_all(line.as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();

    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();

    assert_eq!(answer, format!("the line is longer than 1048576 bytes{ERROR}\n"));
}

#[tokio::test]
async fn end_of_the_server_cancels_commands() {
    let shell = Shell::start();
    let mut stream = UnixStream::connect(&shell.path).await.unwrap();
    stream.write_all(b"watch\n").await.unwrap();
    let mut started = [0; 8];
    stream.read_exact(&mut started).await.unwrap();

    shell.token.cancel();

    tokio::time::timeout(Duration::from_secs(30), shell.task)
        .await
        .unwrap()
        .unwrap();
    assert!(shell.cancelled.load(Ordering::SeqCst));
}

#[tokio::test]
async fn words_are_completed() {
    let shell = Shell::start();
    let mut client = Client::connect(&shell.path).await.unwrap();

    assert_eq!(client.complete("he").await.unwrap(), ["help"]);
    assert_eq!(
        client.complete("watch a 'b").await.unwrap(),
        ["a 'b-one", "a 'b-two"]
    );
    assert!(client.complete("greet ").await.unwrap().is_empty());
    assert!(client.complete("nope ").await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn connecting_is_tried_for_a_while() {
    let dir = tempfile::tempdir().unwrap();
    let mut attempts = 0;

    let error = Client::connect_patiently(dir.path().join("none"), |_| attempts += 1)
        .await
        .unwrap_err();

    assert!(matches!(error, ClientError::Connect { .. }));
    assert_eq!(attempts, 15);
}
