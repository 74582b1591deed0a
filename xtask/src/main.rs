//! `cargo x`: the project's own commands, in Rust, with nothing else to install.
//!
//! Here are those that start the gateway. A first start builds this program before the gateway, so it has one small
//! dependency; the program `tasks`, which has the others, is built when it is first used.

#![forbid(unsafe_code)]

mod run;

use std::process::ExitCode;

use xtask::report;

const HELP: &str = "\
cargo x COMMAND

  check               format, tidy, clippy with warnings as errors, unit tests
  test [FILTER]       all of that, the document checks, then the cases; installs
                      what the tests need where it is missing. With FILTER: only
                      the cases whose name contains it
  run [--release] [ARGS]
                      build the gateway and start it on conf/ (ARGS are passed
                      on); built quickly, or with --release for speed
  sluice ARGS         build the gateway as `run` does and call it with ARGS, such
                      as `cargo x sluice check conf`
  bench [ARGS]        build for speed, load, report (see bench/README.md)
  compare [FORMAT:FILE...] [ARGS]
                      run nginx, Envoy, Spring Cloud Gateway and Sluice on the same
                      files and compare the answers (see tests/compare/README.md)
  gen [--check]       plugin pages and schemas under docs/plugins, and the messages
                      of etcd's API; with --check fail when the pages are stale
                      (the unit tests fail when the messages are)
  new-plugin NAME [--priority N]
                      a plugin's file, its line in the list, its case
  dashboard           check the dashboard by its types and build dashboard/dist, which the
                      gateway compiles in
  tidy                walls between the rooms, file sizes, banned words, plain English
  fuzz [TARGET] [--seconds N]
                      run one or all fuzz targets, 60 seconds each by default
  exchanges [N]       random bytes from both sides of a worker, over HTTP/1 and
                      over HTTP/2, in N exchanges each, a million by default
  soak [--short] [GOAL...]
                      what docs/reliability.md promises, measured at length; with
                      --short in minutes, on the build that tests use
  engines [WORD...]   the cases of tests/engines, against real servers (OPA, Kafka,
                      Zipkin), which it installs where they are missing
  package [--check] [--binary PATH] [--only NAME]
                      build what users install into target/dist, optimised fully; with
                      --check try it, made from the build that tests use. PATH is
                      the gateway to package, NAME one artefact
  deny                licences, bans, sources and advisories of all dependencies
  help                this text
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (command, rest) = match args.split_first() {
        Some((command, rest)) => (command.as_str(), rest),
        None => ("help", &[][..]),
    };
    report(match command {
        "run" => run::run(rest),
        "sluice" => run::sluice(rest),
        "help" | "-h" | "--help" => {
            print!("{HELP}");
            Ok(())
        }
        _ => run::task(&args),
    })
}
