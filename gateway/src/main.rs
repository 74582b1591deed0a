//! The program `sluice`. All of it is in the library, which is compiled while the rooms below it are
//! still being optimised: a program would be compiled after them.
#![forbid(unsafe_code)]

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    gateway::main()
}
