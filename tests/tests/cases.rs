//! Runs every file under `tests/cases`; see `tests/README.md`.

fn main() -> std::process::ExitCode {
    tests::suite::main()
}
