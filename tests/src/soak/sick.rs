//! R6: one in twenty of an origin's responses is late, missing or aborted.
//!
//! An aborted response must not look complete to the client, and other requests must not be
//! affected. The failing requests have their own clients, since a client that waits for one cannot
//! send the next, but share the origin and its pooled connections with all others.

use super::load::{Caller, Load, RATE, SLICE, Style, Tally, calmest};
use super::site::Site;
use super::{Row, Trial, ms, quantile};
use anyhow::{Result, ensure};
use serde_json::json;
use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

/// One in twenty.
const SICK_RATE: u32 = RATE / 20;
/// Enough for all late responses to be awaited at once.
const CLIENTS: u32 = 20;
/// How late a late answer is.
const LATE: Duration = Duration::from_millis(500);
/// A client that knows nothing by then hangs.
const PATIENCE: Duration = Duration::from_secs(30);
/// Allowed growth of other requests' times, even if it is more than a fifth.
const NOISE: Duration = Duration::from_micros(300);

/// The fault of an origin for a path `/sick/KIND/NUMBER`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sickness {
    kind: Kind,
    number: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// The right answer, late.
    Slow,
    /// The request is read and the connection reset.
    Reset,
    /// The answer ends after some of its bytes, by turns with an end and with a reset.
    Cut,
}

const KINDS: [(&str, Kind); 3] =
    [("/sick/slow/", Kind::Slow), ("/sick/reset/", Kind::Reset), ("/sick/cut/", Kind::Cut)];

impl Sickness {
    pub fn of(target: &str) -> Option<Sickness> {
        let read = |(prefix, kind): (&str, Kind)| {
            let number = target.strip_prefix(prefix)?.parse().ok()?;
            Some(Sickness { kind, number })
        };
        KINDS.into_iter().find_map(read)
    }

    /// Does it to the connection, `answer` being what is due; says whether that is over now.
    pub fn strikes(self, mut stream: &TcpStream, answer: &[u8]) -> bool {
        match self.kind {
            Kind::Slow => {
                std::thread::sleep(LATE);
                return false;
            }
            Kind::Reset => _ = crate::talk::reset(stream),
            Kind::Cut => {
                // Any place is as likely as any other: in the head, the body, the end of the chunks.
                let place = (self.number.wrapping_mul(2_654_435_761) >> 8) as usize % answer.len();
                let _ = stream.write_all(&answer[..place]);
                if self.number.is_multiple_of(2) {
                    let _ = stream.shutdown(Shutdown::Write);
                } else {
                    let _ = crate::talk::reset(stream);
                }
            }
        }
        true
    }
}

pub fn run(trial: &Trial) -> Result<Vec<Row>> {
    let rounds: u32 = trial.pick(1, 24);
    let mut site = Site::start(trial.program, json!(null), "")?;
    site.put("routes/all", &site.route("/*", json!({})))?;
    let style = Style { rate: Some(RATE - SICK_RATE), clients: CLIENTS, looks: true };
    let load = Load::with(&site.proxy, &["/load".to_owned()], style);
    std::thread::sleep(SLICE);
    load.take();
    let (mut calm, mut busy, mut sick) = (Tally::default(), Tally::default(), Sick::default());
    let (mut before, mut during) = (Vec::new(), Vec::new());
    // By turns, so that a machine that is slower for a while is so in both.
    for round in 0..rounds {
        trial.progress(f64::from(round) / f64::from(rounds), &format!("{} sick answers", sick.asked));
        let (tally, time) = load.watch(1);
        calm.add(tally);
        before.push(time);
        sick.add(fall_ill(&site.proxy, round));
        let mut tally = load.take();
        during.push(quantile(&mut tally.times, 0.99));
        busy.add(tally);
    }
    calm.failed += load.stop().failed;
    let (before, during) = (calmest(&mut before), calmest(&mut during));
    let allowed = (before * 6 / 5).max(before + trial.pick(NOISE * 60, NOISE));
    let failed = calm.failed + busy.failed;
    Ok(vec![
        Row::new(
            "R6",
            &format!("of {} answers cut off or reset, shown as whole", sick.broken + sick.refused),
            "0",
            sick.verdict(),
            sick.wrong == 0 && sick.broken > 0 && sick.refused > 0,
        ),
        Row::new(
            "R6",
            &format!("right answers of those that come {} late", ms(LATE)),
            "all",
            format!("{} of {}", sick.right, sick.late),
            sick.right == sick.late && sick.late > 0,
        ),
        Row::new(
            "R6",
            "failed requests of others meanwhile",
            "0",
            format!("{failed} of {}", busy.requests),
            failed == 0 && busy.requests > 100,
        ),
        Row::figure(
            "R6",
            "time of those, 99 %",
            &format!("1.2 x {}", ms(before)),
            ms(during),
            during <= allowed,
        ),
    ])
}

/// Results of the failing requests.
#[derive(Default)]
struct Sick {
    asked: u32,
    late: u32,
    /// Of the late ones.
    right: u32,
    /// The client saw that the answer is not whole.
    broken: u32,
    /// A whole answer in the gateway's name: 502.
    refused: u32,
    /// Anything else.
    wrong: u32,
    first: Option<String>,
}

impl Sick {
    fn add(&mut self, other: Sick) {
        self.asked += other.asked;
        self.late += other.late;
        self.right += other.right;
        self.broken += other.broken;
        self.refused += other.refused;
        self.wrong += other.wrong;
        self.first = self.first.take().or(other.first);
    }

    fn verdict(&self) -> String {
        let first = self.first.as_ref().map(|first| format!("; {first}")).unwrap_or_default();
        format!("{}, {} were seen broken, {} became 502{first}", self.wrong, self.broken, self.refused)
    }

    fn note(&mut self, caller: &mut Caller, kind: Kind, path: &str, number: u32) {
        self.asked += 1;
        let began = Instant::now();
        if kind == Kind::Slow {
            self.late += 1;
            self.right += u32::from(caller.ask(path, number).is_ok());
        } else if let Err(error) = self.broken_off(caller, &format!("{path}/{number}"), began) {
            self.wrong += 1;
            self.first.get_or_insert(format!("{error:#}"));
        }
    }

    fn broken_off(&mut self, caller: &mut Caller, target: &str, began: Instant) -> Result<()> {
        let request = format!("GET {target} HTTP/1.1\r\nHost: sick\r\n\r\n");
        match caller.exchange("GET", target, request.as_bytes()) {
            Ok(answer) if answer.complete && answer.status() == 502 => self.refused += 1,
            Ok(answer) if answer.complete => anyhow::bail!("{target}: a whole answer: {}", answer.line),
            Ok(_) | Err(_) => self.broken += 1,
        }
        ensure!(began.elapsed() < PATIENCE, "{target}: nothing for {PATIENCE:?}");
        Ok(())
    }
}

/// Sick requests for a slice of time.
fn fall_ill(address: &str, round: u32) -> Sick {
    let gap = Duration::from_secs(1) * CLIENTS / SICK_RATE;
    let client = |client: u32| {
        let mut sick = Sick::default();
        let mut caller = Caller::new(address, true);
        let mut due = Instant::now() + gap * client / CLIENTS;
        let end = Instant::now() + SLICE;
        for turn in (client..).step_by(CLIENTS as usize) {
            std::thread::sleep(due.min(end).saturating_duration_since(Instant::now()));
            if due >= end {
                break;
            }
            due += gap;
            let (path, kind) = KINDS[turn as usize % KINDS.len()];
            sick.note(&mut caller, kind, path.trim_end_matches('/'), round * 100_000 + turn);
        }
        sick
    };
    std::thread::scope(|scope| {
        let client = &client;
        let clients: Vec<_> = (0..CLIENTS).map(|number| scope.spawn(move || client(number))).collect();
        clients.into_iter().fold(Sick::default(), |mut all, client| {
            match client.join() {
                Ok(sick) => all.add(sick),
                Err(_) => all.wrong += 1,
            }
            all
        })
    })
}

#[cfg(test)]
mod tests {
    use super::{Kind, Sickness};

    #[test]
    fn a_path_says_what_is_wrong() {
        assert_eq!(Sickness::of("/sick/cut/7"), Some(Sickness { kind: Kind::Cut, number: 7 }));
        assert_eq!(Sickness::of("/load/7"), None);
        assert_eq!(Sickness::of("/sick/cut/x"), None);
    }
}
