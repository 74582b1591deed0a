//! Facts about the process for the live view: processor time of each worker, and memory.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use admin::live::{Process, ReadProcess};

/// Returns the reader of these facts. It knows processor times from the second call on. Its files stay open: a call
/// takes one system call for each worker, and one for the memory.
pub fn reader(workers: usize) -> ReadProcess {
    let mut files = BTreeMap::new();
    let statm = File::open("/proc/self/statm").ok();
    let mut before = BTreeMap::new();
    Box::new(move |seconds| {
        if files.len() < workers {
            files = worker_files();
        }
        let now: BTreeMap<_, _> = files.values().filter_map(|file| of_worker(&text(file))).collect();
        let hertz = rustix::param::clock_ticks_per_second().max(1) as f64;
        let share = |worker: usize| {
            let (now, before) = (now.get(&worker)?, before.get(&worker)?);
            Some(u64::saturating_sub(*now, *before) as f64 / hertz / seconds)
        };
        let worker_cpu = (0..workers).map(|worker| share(worker).unwrap_or(0.0)).collect();
        before = now.clone();
        Process { worker_cpu, memory: statm.as_ref().map_or(0, |file| memory(&text(file))) }
    })
}

/// The `stat` of each worker's thread.
fn worker_files() -> BTreeMap<usize, File> {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let stat = threads.filter_map(|thread| File::open(thread.path().join("stat")).ok());
    stat.filter_map(|file| Some((of_worker(&text(&file))?.0, file))).collect()
}

/// The present content of a file of the kernel.
fn text(file: &File) -> String {
    let mut buffer = [0; 1024];
    let len = file.read_at(&mut buffer, 0).unwrap_or(0);
    String::from_utf8_lossy(&buffer[..len]).into_owned()
}

/// The number of a worker and its clock ticks, out of the `stat` of its thread (proc(5)).
fn of_worker(stat: &str) -> Option<(usize, u64)> {
    let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
    let worker = name.strip_prefix("worker-")?.parse().ok()?;
    // After the name: state is the first field, utime the 12th, stime the 13th.
    let mut times = rest.split_ascii_whitespace().skip(11).map(str::parse::<u64>);
    Some((worker, times.next()?.ok()? + times.next()?.ok()?))
}

/// Resident bytes, out of `statm` (proc(5)); 0 if unknown.
fn memory(statm: &str) -> u64 {
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * rustix::param::page_size() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ticks_of_a_worker_are_read() {
        let stat = "7 (worker-3) R 1 1 1 0 -1 64 5 0 0 0 120 34 0 0 20 0 4 0 99 1 2";
        assert_eq!(of_worker(stat), Some((3, 154)));
        assert_eq!(of_worker("7 (control) S 1 1 1 0 -1 64 5 0 0 0 120 34 0 0"), None);
        assert_eq!(of_worker(""), None);
        assert!(memory(&text(&File::open("/proc/self/statm").unwrap())) > 1 << 16);
    }
}
