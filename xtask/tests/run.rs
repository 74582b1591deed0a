//! `cargo x run` and `cargo x sluice` become the gateway instead of waiting for it, so that a signal to them ends the
//! gateway.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

/// The gateway without the host of WebAssembly, which takes minutes to build.
const GATEWAY: &str = "--package gateway --no-default-features --features gateway/lua";

/// Standard output of the runner with a cargo that prints its arguments and folder, and its process id.
fn run(args: &[&str]) -> (String, u32) {
    let name = format!("xtask-{}-{}", args[0], std::process::id());
    let cargo = std::env::temp_dir().join(name);
    std::fs::write(&cargo, "#!/bin/sh\necho \"process $$ in $(pwd -P): $*\"\n").unwrap();
    std::fs::set_permissions(&cargo, std::fs::Permissions::from_mode(0o700)).unwrap();
    let runner = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(args)
        .env("CARGO", &cargo)
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let id = runner.id();
    let output = runner.wait_with_output().unwrap();
    std::fs::remove_file(&cargo).unwrap();
    (String::from_utf8(output.stdout).unwrap(), id)
}

#[test]
fn cargo_takes_the_place_of_the_runner() {
    let (said, id) = run(&["run", "mine"]);
    let root = std::fs::canonicalize(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).unwrap();
    let wanted = format!("process {id} in {}: run --profile quick {GATEWAY} -- run mine\n", root.display());
    assert_eq!(said, wanted);
}

/// Paths among the arguments are those of the current folder, and standard output is the program's.
#[test]
fn sluice_runs_in_the_current_folder() {
    let (said, id) = run(&["sluice", "check", "--strict", "a b"]);
    let here = std::fs::canonicalize(concat!(env!("CARGO_MANIFEST_DIR"), "/src")).unwrap();
    assert!(said.starts_with(&format!("process {id} in {}: run --manifest-path ", here.display())), "{said}");
    assert!(said.ends_with(&format!("--profile quick {GATEWAY} -- check --strict a b\n")), "{said}");
}
