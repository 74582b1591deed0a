//! Gives memory back that compiling used only for a while.
//!
//! The allocator returns free pages to the system about a second after they came free. But it looks for such pages
//! only when more are freed, which does not happen in an idle gateway, or when a thread ends. After a start with many
//! resources a quarter of all memory would stay like this.

use std::thread;
use std::time::Duration;

use control::Handle;

/// Compiling for so long leaves something worth looking for.
const LONG: Duration = Duration::from_millis(50);
/// Typed forms are let go of in the first moments after a compile; the second look is for stragglers.
const PAUSES: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(10)];

/// Runs as long as the pipeline.
pub async fn give_back(mut pipeline: Handle) {
    let mut seen = Duration::ZERO;
    loop {
        let compiling = pipeline.report().compiling;
        if compiling.saturating_sub(seen) >= LONG {
            seen = compiling;
            for pause in PAUSES {
                tokio::time::sleep(pause).await;
                look();
            }
        } else if !pipeline.changed().await {
            return;
        }
    }
}

/// Lets the allocator look for pages that have been free for a while.
fn look() {
    // The allocator does not notice the end of a thread that has allocated nothing.
    let thread = thread::Builder::new().spawn(|| drop(std::hint::black_box(vec![0u8; 64])));
    // Memory that is given back later is no harm.
    let _ = thread.map(thread::JoinHandle::join);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages that hold something in memory.
    fn resident() -> usize {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * rustix::param::page_size()
    }

    /// In a process of its own: the threads of other tests could take over the pages of a thread that has ended,
    /// and keep them.
    #[test]
    fn what_is_free_goes_back_to_the_system() {
        const ALONE: &str = "SLUICE_TEST_ALONE";
        if std::env::var_os(ALONE).is_some() {
            return memory_goes_back();
        }
        let name = "memory::tests::what_is_free_goes_back_to_the_system";
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(ALONE, "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{output:?}");
    }

    fn memory_goes_back() {
        const SIZE: usize = 1 << 27;
        // Made on a thread that ends, and freed by another, as typed resources are.
        let blocks = thread::spawn(|| (0..SIZE / 512).map(|_| vec![1u8; 500]).collect::<Vec<_>>());
        let blocks = blocks.join().unwrap();
        let full = resident();
        drop(blocks);
        for _ in 0..300 {
            thread::sleep(Duration::from_millis(100));
            look();
            if resident() < full - SIZE / 2 {
                return;
            }
        }
        panic!("{} of {full} bytes are still there", resident());
    }
}
