//! OCSP responses for the gateway's own certificates, fetched ahead of handshakes.
//!
//! An ssl resource asks for them by `ocsp_stapling`. Each certificate's response is fetched when it is first
//! served, checked, given to the pipeline, and fetched again before it is too old. When that fails, the last
//! good one is stapled until the time at which it said there would be another.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use control::Handle;
use control::Stapling;
use hyper::Method;
use tokio::task::JoinSet;
use tokio::time::Instant;

mod der;

use crate::Trust;
use crate::http::{self, Server};
use der::Question;

/// The settings of `plugin_attr.ocsp-stapling`.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// For a whole exchange with a responder.
    pub timeout: Duration,
    /// Bytes of a response.
    pub max_response: usize,
}

/// Responders asked at once.
const PARALLEL: usize = 8;

/// Between the first failure and the next try; twice as long after each.
const FIRST_PAUSE: Duration = Duration::from_secs(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);
/// Between two tries after a success, at least.
const SHORTEST: Duration = Duration::from_secs(60);

/// One certificate.
struct Kept {
    stapling: Arc<Stapling>,
    due: Instant,
    asking: bool,
    failures: u32,
    /// The failure that was logged last.
    told: String,
    /// Until when what is stapled now may be.
    until: Option<i64>,
}

struct Fetched {
    id: [u8; 32],
    /// The certificate and its settings, as of the request.
    stapling: Arc<Stapling>,
    outcome: Result<(Arc<[u8]>, Option<i64>), String>,
}

/// Keeps responses for as long as the pipeline lives.
pub async fn run(handle: Handle, trust: Trust, settings: Settings) {
    let mut wanted = handle.stapling();
    let mut kept: HashMap<[u8; 32], Kept> = HashMap::new();
    let mut asked: JoinSet<Fetched> = JoinSet::new();
    take(&mut kept, &wanted.borrow_and_update().clone(), &handle);
    loop {
        let now = unix_now();
        for (id, one) in &mut kept {
            if one.expires(now) {
                tracing::error!(
                    "{}: no ocsp response is stapled any more: the last one has expired",
                    one.stapling.key
                );
                handle.staple(one.stapling.key.clone(), *id, None);
            }
        }
        let mut next = Instant::now() + SHORTEST;
        for (id, one) in kept.iter_mut().filter(|(_, one)| !one.asking) {
            if one.due <= Instant::now() && asked.len() < PARALLEL {
                one.asking = true;
                let (id, stapling, trust) = (*id, one.stapling.clone(), trust.clone());
                asked.spawn(async move {
                    let outcome = fetch(&stapling, &trust, settings).await;
                    Fetched { id, stapling, outcome }
                });
            } else {
                next = next.min(one.due);
            }
        }
        if asked.len() >= PARALLEL {
            // No other request is made before one of them has ended.
            next = Instant::now() + SHORTEST;
        }
        tokio::select! {
            changed = wanted.changed() => match changed {
                Ok(()) => take(&mut kept, &wanted.borrow_and_update().clone(), &handle),
                Err(_) => return,
            },
            Some(Ok(fetched)) = asked.join_next() => {
                if let Some(one) = kept.get_mut(&fetched.id) {
                    one.heard(fetched, &handle);
                }
            }
            () = tokio::time::sleep_until(next) => {}
        }
    }
}

/// Takes in what is wanted now, and forgets the rest.
fn take(kept: &mut HashMap<[u8; 32], Kept>, wanted: &[Arc<Stapling>], handle: &Handle) {
    let ids: HashMap<[u8; 32], &Arc<Stapling>> = wanted.iter().map(|one| (one.id, one)).collect();
    kept.retain(|id, one| {
        let stays = ids.contains_key(id);
        if !stays {
            handle.staple(one.stapling.key.clone(), *id, None);
        }
        stays
    });
    for (id, stapling) in ids {
        match kept.get_mut(&id) {
            Some(one) if one.stapling == *stapling => {}
            Some(one) => {
                // It is asked for in another way.
                one.stapling = stapling.clone();
                one.due = Instant::now();
                one.failures = 0;
            }
            None => {
                let one = Kept {
                    stapling: stapling.clone(),
                    due: Instant::now(),
                    asking: false,
                    failures: 0,
                    told: String::new(),
                    until: None,
                };
                kept.insert(id, one);
            }
        }
    }
}

impl Kept {
    /// Whether what is stapled is over since `now`. Then another one is due at once: where the clock was set, what was
    /// planned by the one before says nothing any more.
    fn expires(&mut self, now: i64) -> bool {
        let over = self.until.is_some_and(|until| until <= now);
        if over {
            (self.until, self.due) = (None, Instant::now());
        }
        over
    }

    fn heard(&mut self, fetched: Fetched, handle: &Handle) {
        self.asking = false;
        if self.stapling != fetched.stapling {
            // It is to be asked for in another way since, and is due at once.
            return;
        }
        let key = &self.stapling.key;
        let pause = match fetched.outcome {
            Ok((response, next_update)) => {
                if self.failures > 0 {
                    tracing::info!("{key}: an ocsp response is stapled again");
                }
                (self.failures, self.told) = (0, String::new());
                let ttl = self.stapling.cache_ttl;
                let until =
                    next_update.unwrap_or_else(|| unix_now().saturating_add(ttl.as_secs().cast_signed()));
                self.until = Some(until);
                handle.staple(key.clone(), fetched.id, Some(response));
                // Half of its time is left for failures.
                let half = u64::try_from((until - unix_now()) / 2).unwrap_or(0);
                ttl.min(Duration::from_secs(half)).max(SHORTEST)
            }
            Err(why) => {
                if self.told != why {
                    let stays = if self.until.is_some() { "; the last one stays in use" } else { "" };
                    tracing::error!("no ocsp response send: {why}; {key}{stays}");
                    self.told = why;
                }
                self.failures += 1;
                (FIRST_PAUSE * (1 << self.failures.min(10).saturating_sub(1))).min(LONGEST_PAUSE)
            }
        };
        // Not all at once, where all were asked for at once.
        self.due = Instant::now() + pause.mul_f64(0.8 + fastrand::f64() * 0.2);
    }
}

async fn fetch(
    stapling: &Stapling,
    trust: &Trust,
    settings: Settings,
) -> Result<(Arc<[u8]>, Option<i64>), String> {
    let question = Question::of(stapling)?;
    let response = ask(&question, trust, settings).await?;
    let algorithms = rustls::crypto::aws_lc_rs::default_provider().signature_verification_algorithms;
    let answer = question.check(&response, !stapling.skip_verify, unix_now(), &algorithms)?;
    Ok((response.to_vec().into(), answer.next_update))
}

async fn ask(asked: &Question, trust: &Trust, settings: Settings) -> Result<Bytes, String> {
    let failed = |error: String| format!("ocsp responder query failed: {}: {error}", asked.url);
    // The path is kept as it is written, behind scheme and host.
    let at = asked.url.match_indices('/').nth(2).map_or(asked.url.len(), |(at, _)| at);
    let (origin, path) = asked.url.split_at(at);
    let server = Server::parse(origin, &trust.verifying).map_err(failed)?.resolved_by(trust.names.clone());
    let question = http::Question {
        method: Method::POST,
        path: if path.is_empty() { "/" } else { path },
        headers: &[("content-type", "application/ocsp-request")],
        body: asked.request().into(),
    };
    let millis = u64::try_from(settings.timeout.as_millis()).unwrap_or(u64::MAX / 4);
    let timeouts = http::Timeouts { connect: millis, send: 0, read: 0, wait: 0 };
    let answer = server.send(question, timeouts, Duration::ZERO, settings.max_response).await;
    let answer = answer.map_err(failed)?;
    match answer.status {
        200 if answer.body.is_empty() => Err("ocsp responder returns empty body".to_owned()),
        200 => Ok(answer.body),
        status => Err(format!("ocsp responder returns bad http status code: {status}")),
    }
}

fn unix_now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs().cast_signed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expired_response_is_due_at_once_and_reported_once() {
        let stapling = Arc::new(Stapling {
            key: model::Key::new(model::Kind::Ssl, "1"),
            id: [0; 32],
            chain: Vec::new(),
            skip_verify: false,
            cache_ttl: Duration::ZERO,
        });
        let due = Instant::now() + Duration::from_secs(3600);
        let mut one =
            Kept { stapling, due, asking: false, failures: 3, told: String::new(), until: Some(1000) };
        assert!(!one.expires(999) && one.due == due);
        // The clock was set, by more than the hour that was left.
        assert!(one.expires(9000) && one.due <= Instant::now());
        assert!(!one.expires(9001), "there is nothing any more that could");
    }
}
