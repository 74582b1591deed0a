//! Facts about the process for the live view: processor time of each worker, and memory.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use admin::live::{Process, ReadProcess};

/// `USER_HZ`, the unit of times in /proc on every architecture that this program is built for.
const TICKS_PER_SECOND: f64 = 100.0;

/// Returns the reader of these facts. It knows processor times from the second call on. Its files are
/// open from the beginning, if the workers run by then: a call takes one system call for each worker, and one for the memory.
pub fn reader(workers: usize) -> ReadProcess {
    let mut files = worker_files();
    let status = File::open("/proc/self/status").ok();
    let mut before = BTreeMap::new();
    Box::new(move |seconds| {
        if files.len() < workers {
            files = worker_files();
        }
        let now: BTreeMap<_, _> = files.values().filter_map(|file| of_worker(&text(file))).collect();
        let share = |worker: usize| {
            let (now, before) = (now.get(&worker)?, before.get(&worker)?);
            Some(u64::saturating_sub(*now, *before) as f64 / TICKS_PER_SECOND / seconds)
        };
        let worker_cpu = (0..workers).map(|worker| share(worker).unwrap_or(0.0)).collect();
        before = now.clone();
        Process { worker_cpu, memory: status.as_ref().map_or(0, |file| memory(&text(file))) }
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
    let mut buffer = [0; 4096];
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

/// Resident bytes, out of `status` (proc(5)); 0 if unknown.
fn memory(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_ascii_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
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
        assert!(memory(&text(&File::open("/proc/self/status").unwrap())) > 1 << 16);
    }
}
