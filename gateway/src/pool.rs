//! The threads of the background pool.
//!
//! They take work that would hold up a worker, such as compression at a high level, at a lower priority than
//! workers have: where there are no cores to spare, requests come first.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use proxy::{Pool, Work};

/// How much further down than workers the threads are (nice).
const NICE: i32 = 5;

/// Starts this number of threads. They end with the process.
///
/// # Errors
/// The number that could be started, and why no more.
pub fn start(threads: usize) -> std::io::Result<Pool> {
    start_named("background", NICE, threads)
}

/// Starts the threads that read the files which plugins serve. They mostly wait for disks.
///
/// # Errors
/// As there.
pub fn start_for_files(threads: usize) -> std::io::Result<Pool> {
    start_named("files", 0, threads)
}

fn start_named(name: &str, nice: i32, threads: usize) -> std::io::Result<Pool> {
    let (hand, handed): (Sender<Work>, Receiver<Work>) = channel();
    let handed = Arc::new(Mutex::new(handed));
    for index in 0..threads {
        let handed = handed.clone();
        let run = move || {
            // Where this is not allowed, they have the priority of workers.
            let _ = rustix::process::nice(nice);
            loop {
                let work = handed.lock().unwrap_or_else(PoisonError::into_inner).recv();
                let Ok(work) = work else { return };
                work();
            }
        };
        std::thread::Builder::new().name(format!("{name}-{index}")).spawn(run).map_err(|error| {
            let text = format!("only {index} of {threads} {name} threads could be started: {error}");
            std::io::Error::new(error.kind(), text)
        })?;
    }
    // The threads are there for as long as anything can be handed over.
    Ok(Pool::new(threads, move |work| drop(hand.send(work))))
}
