//! `cargo x run` becomes the gateway instead of waiting for it, so that whoever ends it ends the gateway.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

#[test]
fn cargo_takes_the_place_of_the_runner() {
    let cargo = std::env::temp_dir().join(format!("xtask-run-{}", std::process::id()));
    std::fs::write(&cargo, "#!/bin/sh\necho \"process $$: $*\"\n").unwrap();
    std::fs::set_permissions(&cargo, std::fs::Permissions::from_mode(0o700)).unwrap();
    let runner = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(["run", "mine"])
        .env("CARGO", &cargo)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let id = runner.id();
    let output = runner.wait_with_output().unwrap();
    std::fs::remove_file(&cargo).unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let wanted = format!("process {id}: run --profile quick --package gateway -- run mine\n");
    assert!(said.ends_with(&wanted), "{said}");
}
