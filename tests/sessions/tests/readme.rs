//! README.md is the truth: every command in its psql transcripts is run, in order, and answers as it says.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use lock_ext_sessions::Db;

const PROMPTS: [&str; 2] = ["=# ", "=*# "];

#[tokio::test]
async fn readme_transcripts_are_what_psql_prints() {
    // Its database is another one, but not while a test that is alone does something to the whole server.
    let _place = Db::bare().await;
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let text = std::fs::read_to_string(readme).expect("README.md is there");
    let steps = transcript(&text);
    assert!(steps.len() > 30, "only {} commands found in README.md", steps.len());

    psql("postgres", "DROP DATABASE IF EXISTS readme;\nCREATE DATABASE readme;\n");
    let (out, err) = psql("readme", &script(&steps));
    psql("postgres", "DROP DATABASE readme WITH (FORCE);\n");

    let out = by_step(&out);
    let err = by_step(&err);
    for (i, (command, expected)) in steps.iter().enumerate() {
        let printed = format!("{}{}", out[i], err[i]);
        assert_eq!(lines(&printed), lines(expected), "\nREADME.md, at: {command}");
    }
}

/// The commands of all blocks, each with what follows it.
fn transcript(readme: &str) -> Vec<(String, String)> {
    let mut steps: Vec<(String, String)> = Vec::new();
    let mut inside = false;
    for line in readme.lines() {
        if line.starts_with("```") {
            inside = line == "```psql";
        } else if inside {
            match PROMPTS.iter().find_map(|prompt| line.strip_prefix(prompt)) {
                Some(command) => steps.push((command.into(), String::new())),
                None => {
                    let (_, expected) = steps.last_mut().expect("a block begins with a command");
                    expected.push_str(line);
                    expected.push('\n');
                }
            }
        }
    }
    steps
}

/// A mark after each command, on both channels, tells which output is whose.
fn script(steps: &[(String, String)]) -> String {
    let marked = steps.iter().map(|(command, _)| format!("{command}\n\\echo @@\n\\warn @@\n"));
    "\\set SHOW_CONTEXT never\n".to_owned() + &marked.collect::<String>()
}

fn by_step(printed: &str) -> Vec<String> {
    printed.split("@@\n").map(str::to_owned).collect()
}

fn lines(text: &str) -> Vec<&str> {
    text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect()
}

fn psql(database: &str, script: &str) -> (String, String) {
    let mut child = Command::new("psql")
        .args(["-X", "-d", database])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("psql is installed");
    let mut input = child.stdin.take().expect("a pipe");
    input.write_all(script.as_bytes()).expect("psql reads");
    drop(input);
    let output = child.wait_with_output().expect("psql ends");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}
