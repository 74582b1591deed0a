//! Our own driver: an open loop at a constant rate.
//!
//! Request number k is due at `start + k / rate`, on connection `k % connections`, whether or not
//! earlier responses have arrived. A late response therefore delays those behind it on its
//! connection, and their waiting time counts: a latency is the time from when a request was due to
//! the last byte of its response. A closed-loop driver would simply send less while a gateway
//! stalls and never see the stall (coordinated omission). Latencies go to an HdrHistogram.
//!
//! One thread, one epoll, and one timerfd for the pace, since epoll's own timeouts are whole
//! milliseconds. Delays of that thread count too, the same for every gateway.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use hdrhistogram::Histogram;
use rustix::event::epoll;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use super::response::ResponseReader;
use super::{Load, Target};
use crate::machine::{Cores, pin_this_thread};

/// The epoll key of the timer; connections have their index.
const TIMER: u64 = u64::MAX;

/// How long after the last due time a response may still arrive.
const PATIENCE: Duration = Duration::from_secs(2);

/// Sends `rate` requests per second for `duration`.
///
/// # Errors
/// The first connections fail. Later failures are counted as errors and reconnected.
pub fn run(
    connections: usize,
    rate: u64,
    target: &Target,
    duration: Duration,
    cores: &Cores,
) -> Result<Load> {
    let target = target.clone();
    let cores = cores.clone();
    // A dedicated thread, since pinning is permanent.
    let driver = std::thread::spawn(move || {
        pin_this_thread(&cores).context("cannot pin the load driver")?;
        Driver::new(connections, rate, target, duration)?.run()
    });
    match driver.join() {
        Ok(outcome) => outcome,
        Err(_) => bail!("the load driver panicked"),
    }
}

struct Driver {
    target: Target,
    /// One request per path, built before the run.
    requests: Vec<Vec<u8>>,
    connections: Vec<Connection>,
    epoll: OwnedFd,
    timer: OwnedFd,
    interval: Duration,
    /// Total number of requests.
    total: u64,
    latencies: Histogram<u64>,
    errors: u64,
}

struct Connection {
    stream: TcpStream,
    reader: ResponseReader,
    /// When the request in flight was due.
    under_way: Option<Instant>,
    /// Due requests that wait for the one in flight.
    waiting: VecDeque<(Instant, usize)>,
}

impl Driver {
    fn new(connections: usize, rate: u64, target: Target, duration: Duration) -> Result<Self> {
        let rate = rate.max(1);
        let mut driver = Self {
            requests: (0..target.paths).map(|index| target.request(index)).collect(),
            connections: Vec::new(),
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            timer: timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?,
            interval: Duration::from_secs(1).div_f64(rate as f64),
            total: (rate as f64 * duration.as_secs_f64()) as u64,
            latencies: Histogram::new_with_bounds(1, 60_000_000, 3)?,
            errors: 0,
            target,
        };
        for index in 0..connections {
            let connection = driver.connect(index)?;
            driver.connections.push(connection);
        }
        epoll::add(&driver.epoll, &driver.timer, epoll::EventData::new_u64(TIMER), epoll::EventFlags::IN)?;
        Ok(driver)
    }

    fn connect(&self, index: usize) -> Result<Connection> {
        let stream = TcpStream::connect_timeout(&self.target.address, Duration::from_secs(2))
            .with_context(|| format!("connection {index} to {}", self.target.address))?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        epoll::add(&self.epoll, &stream, epoll::EventData::new_u64(index as u64), epoll::EventFlags::IN)?;
        Ok(Connection {
            stream,
            reader: ResponseReader::default(),
            under_way: None,
            waiting: VecDeque::new(),
        })
    }

    fn run(mut self) -> Result<Load> {
        // At least 50 us: below that the timer would cost more than it gains.
        let tick = self.interval.max(Duration::from_micros(50));
        let spec = timespec(tick);
        let timing = Itimerspec { it_interval: spec, it_value: spec };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &timing)?;

        let start = Instant::now();
        let end = start + self.interval.mul_f64(self.total as f64);
        let mut sent = 0;
        let mut events: Vec<epoll::Event> = Vec::with_capacity(256);
        let mut bytes = vec![0; 64 * 1024];
        loop {
            let now = Instant::now();
            while sent < self.total {
                let due = start + self.interval.mul_f64(sent as f64);
                if due > now {
                    break;
                }
                let index = (sent % self.connections.len() as u64) as usize;
                let request = (sent.wrapping_mul(7919) % self.requests.len() as u64) as usize;
                self.connections[index].waiting.push_back((due, request));
                sent += 1;
                self.send_next(index);
            }
            let idle = self.connections.iter().all(|c| c.under_way.is_none() && c.waiting.is_empty());
            if sent == self.total && (idle || now > end + PATIENCE) {
                break;
            }
            events.clear();
            let pause = timespec(Duration::from_millis(100));
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&pause)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for event in &events {
                match event.data.u64() {
                    TIMER => {
                        let _ = rustix::io::read(&self.timer, &mut bytes[..8]);
                    }
                    index => self.receive(index as usize, &mut bytes),
                }
            }
        }
        let unanswered: usize =
            self.connections.iter().map(|c| c.waiting.len() + usize::from(c.under_way.is_some())).sum();
        let seconds = start.elapsed().min(end - start).as_secs_f64();
        let remark = (unanswered > 0)
            .then(|| format!("{unanswered} were still unanswered {PATIENCE:?} after the end"));
        Ok(Load::timed(&self.latencies, seconds, self.errors + unanswered as u64, remark))
    }

    /// Sends the next waiting request of a connection that has none in flight.
    fn send_next(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        if connection.under_way.is_some() {
            return;
        }
        let Some((due, request)) = connection.waiting.pop_front() else { return };
        connection.under_way = Some(due);
        // A request of some hundred bytes always fits into an empty socket buffer.
        match connection.stream.write(&self.requests[request]) {
            Ok(written) if written == self.requests[request].len() => {}
            _ => self.fail(index),
        }
    }

    fn receive(&mut self, index: usize, bytes: &mut [u8]) {
        let connection = &mut self.connections[index];
        let count = match connection.stream.read(bytes) {
            Ok(0) => return self.fail(index),
            Ok(count) => count,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => return,
            Err(_) => return self.fail(index),
        };
        match (connection.reader.feed(&bytes[..count]), connection.under_way) {
            (Ok(None), Some(_)) => {}
            (Ok(Some(response)), Some(due)) => {
                connection.under_way = None;
                if response.status / 100 == 2 && response.body == self.target.body {
                    self.latencies.saturating_record(due.elapsed().as_micros() as u64);
                } else {
                    self.errors += 1;
                }
                self.send_next(index);
            }
            _ => self.fail(index),
        }
    }

    /// Counts the request in flight as failed and opens a new connection.
    fn fail(&mut self, index: usize) {
        if self.connections[index].under_way.take().is_some() {
            self.errors += 1;
        }
        match self.connect(index) {
            Ok(fresh) => {
                let waiting = std::mem::take(&mut self.connections[index].waiting);
                self.connections[index] = Connection { waiting, ..fresh };
            }
            // Waiting requests are lost with it, and counted, so that this ends.
            Err(_) => {
                self.errors += self.connections[index].waiting.len() as u64;
                self.connections[index].waiting.clear();
            }
        }
    }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: duration.subsec_nanos().into() }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Responds to each request on each connection, and sleeps once for `stall` before response
    /// number 20.
    fn serve(stall: Duration) -> std::net::SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                std::thread::spawn(move || {
                    let mut bytes = [0; 4096];
                    let mut answers = 0;
                    while stream.read(&mut bytes).is_ok_and(|count| count > 0) {
                        answers += 1;
                        if answers == 20 {
                            std::thread::sleep(stall);
                        }
                        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").unwrap();
                    }
                });
            }
        });
        address
    }

    fn drive(address: std::net::SocketAddr, body: u64) -> Load {
        let target = Target::plain(address, body);
        Driver::new(1, 200, target, Duration::from_millis(500)).unwrap().run().unwrap()
    }

    #[test]
    fn sends_all_due_requests() {
        let load = drive(serve(Duration::ZERO), 2);
        assert_eq!((load.requests, load.errors), (100, 0));
    }

    #[test]
    fn a_stall_counts_for_every_request_that_was_due_in_it() {
        let load = drive(serve(Duration::from_millis(200)), 2);
        assert_eq!((load.requests, load.errors), (100, 0));
        // 40 requests were due in those 200 ms: a closed loop would have seen one slow response.
        assert!(load.p90_us > Some(60_000.0), "{load:?}");
    }

    #[test]
    fn answers_of_another_length_are_errors() {
        let load = drive(serve(Duration::ZERO), 3);
        assert_eq!((load.requests, load.errors), (0, 100));
    }
}
