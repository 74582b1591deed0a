//! Mutates requests, responses, chunked bodies and paths, and lets the codec, the reference
//! parser and httparse read each: `cargo run --release -p wire --example mutate -- 10000000 [SEED]`.
//! Ends with an error at the first panic or disagreement.
#![allow(clippy::disallowed_macros, clippy::disallowed_methods, reason = "a tool for developers")]

#[allow(dead_code, reason = "shared with tests")]
#[path = "../tests/support/mod.rs"]
mod support;

use std::process::ExitCode;
use std::time::Instant;

use support::compare::{self, Verdict};
use support::corpus::{CHUNKED, PATHS, REQUESTS, RESPONSES, WORDS};
use support::mutate::{Random, mutate};
use wire::Method;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let mut number = |or: u64| args.next().map_or(Ok(or), |arg| arg.parse());
    let (Ok(rounds), Ok(seed)) = (number(1_000_000), number(1)) else {
        eprintln!("usage: mutate [ROUNDS] [SEED]");
        return ExitCode::FAILURE;
    };
    let mut random = Random::new(seed);
    let begin = Instant::now();
    let [mut read, mut more, mut refused] = [0u64; 3];
    for round in 0..rounds {
        // Requests in all rounds; the others beside them in every eighth.
        let mut checks = vec![one(&mut random, REQUESTS, compare::requests)];
        if round % 8 == 0 {
            let method = [Method::Get, Method::Head, Method::Connect][random.below(3)];
            checks.push(one(&mut random, RESPONSES, |input, cut| compare::responses(input, cut, method)));
            checks.push(one(&mut random, CHUNKED, compare::chunked));
            checks.push(one(&mut random, PATHS, |input, _| compare::paths(input)));
        }
        for check in checks {
            match check {
                Ok(Verdict::Read) => read += 1,
                Ok(Verdict::More) => more += 1,
                Ok(Verdict::Refused(_)) => refused += 1,
                Err(disagreement) => {
                    eprintln!("round {round}, seed {seed}: {disagreement}");
                    return ExitCode::FAILURE;
                }
            }
        }
    }
    println!(
        "{rounds} mutated requests and {} other messages: {read} read, {more} incomplete, {refused} refused, \
         0 disagreements, {:.0} s",
        read + more + refused - rounds,
        begin.elapsed().as_secs_f64()
    );
    ExitCode::SUCCESS
}

fn one(
    random: &mut Random,
    corpus: &[&[u8]],
    compare: impl Fn(&[u8], usize) -> Result<Verdict, String>,
) -> Result<Verdict, String> {
    let mut input = corpus[random.below(corpus.len())].to_vec();
    mutate(random, &mut input, corpus, WORDS);
    let cut = random.below(input.len() + 1);
    compare(&input, cut).map_err(|e| format!("{}\n{e}", input.escape_ascii()))
}
