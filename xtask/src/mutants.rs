//! `cargo x mutants`: breaks the code in one place after another and tells which breaks no test
//! notices. What may survive, and why, stands in `.cargo/mutants.toml`.

use crate::shell::{cargo, output, root, run};
use crate::tools;
use anyhow::{Context, Result, bail};
use std::process::Command;

/// The rooms that every request passes through.
const ROOMS: [&str; 5] = ["wire", "sdk", "snapshot", "plugins", "proxy"];

pub fn command(args: &[String]) -> Result<()> {
    let mut rooms = Vec::new();
    let mut since = None;
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        match arg.as_str() {
            "--since" => since = Some(rest.next().context("--since needs a revision, such as HEAD~1")?),
            room if root().join(room).join("Cargo.toml").is_file() => rooms.push(room),
            _ => bail!("usage: cargo x mutants [ROOM...] [--since REVISION]"),
        }
    }
    if rooms.is_empty() {
        rooms.extend(ROOMS);
    }
    tools::cargo_plugin("mutants")?;
    let folder = root().join("target/mutants");
    std::fs::create_dir_all(&folder)?;
    let mut command = cargo();
    command.args(["mutants", "--output"]).arg(&folder);
    for room in rooms {
        command.args(["--package", room]);
    }
    if let Some(since) = since {
        let changes = output(Command::new("git").current_dir(root()).args(["diff", since]))?;
        let file = folder.join("changes.diff");
        std::fs::write(&file, changes)?;
        command.arg("--in-diff").arg(file);
    }
    run(&mut command)
}
