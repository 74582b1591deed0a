//! `cargo x soak`: see `tests::soak`.

fn main() -> std::process::ExitCode {
    tests::soak::main()
}
