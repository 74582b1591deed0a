//! Certificates that are issued and renewed by an ACME server (RFC 8555).
//!
//! The store holds all state: the account, the challenge responses, the current issuer, and the certificates, as
//! ordinary ssl resources. So every node of a cluster answers challenges, and one at a time asks for
//! certificates. The protocol itself is behind [`Authority`].

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use model::{Key, Kind, Resource};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use snapshot::certs::{self, Facts};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::certificates;
use crate::store::{Change, Refused, Ring, Step, Store, StoreError, unix_ms};

/// The notes of the store: the account (sealed), the answers, the lease of the issuer.
const ACCOUNT: &str = "acme-account";
const ANSWERS: &str = "acme-answers";
const ISSUER: &str = "acme-issuer";

/// Answers kept at most.
const MOST_ANSWERS: usize = 256;
/// Between two looks at what is due.
const LOOK: Duration = Duration::from_secs(30);
/// The same where nothing was found to be wrong, at least.
const SHORTEST: Duration = Duration::from_secs(1);
/// After a success nothing is asked for in a sixteenth of the certificate's life, and not longer than this.
const LONGEST_REST: Duration = Duration::from_secs(3600);
/// The longest pause after failures.
const LONGEST_PAUSE: Duration = Duration::from_secs(6 * 3600);
/// No certificate takes longer: neither the lease of who issues nor an answer is for longer than this.
const LONGEST_LEASE: u64 = 3_600_000;
/// How long the own workers may take to know an answer.
const KNOWN: Duration = Duration::from_secs(5);
/// How long other nodes that follow the same store may take to know it after this one does.
const OTHERS: Duration = Duration::from_secs(1);
/// The label of ssl resources that are renewed.
pub const LABEL: &str = "acme";

/// How names are proved to be ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Challenge {
    /// By an answer on port 80.
    Http01,
    /// By a certificate on port 443.
    TlsAlpn01,
}

/// The challenge response that proves one name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChallengeResponse {
    pub domain: String,
    pub token: String,
    /// The key authorization.
    pub text: String,
    /// When it is forgotten, in milliseconds since 1970.
    #[serde(default)]
    pub until: u64,
}

/// A certificate that was issued, PEM.
pub struct Issued {
    pub chain: String,
    pub key: String,
}

/// A future of an [`Authority`].
pub type Asking<'a, T> = Pin<Box<dyn Future<Output = Result<T, String>> + Send + 'a>>;

/// Publishes an answer, and returns when it is known.
pub trait Prover: Send + Sync {
    fn prove(&self, answer: ChallengeResponse) -> Asking<'_, ()>;
}

/// An ACME server.
pub trait Authority: Send + Sync {
    /// An account: that which was kept, if it is of this server, or a new one. Its text is secret.
    fn account(&self, kept: Option<String>) -> Asking<'_, String>;

    /// Has a certificate issued. `prover` is asked to publish what proves each name.
    fn issue<'a>(
        &'a self,
        account: &'a str,
        domains: &'a [String],
        challenge: Challenge,
        prover: &'a dyn Prover,
    ) -> Asking<'a, Issued>;
}

/// The ACME settings of the boot file.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Names of one certificate each, the first of which names the resource.
    pub certificates: Vec<Vec<String>>,
    pub challenge: Challenge,
    /// For one certificate, from the order to the end.
    pub timeout: Duration,
    /// The pause after a failure; twice as long after each.
    pub retry: Duration,
}

/// How a certificate is, for people and metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// The id of the ssl resource.
    pub id: String,
    pub domains: Vec<String>,
    /// In seconds since 1970; none before there is a certificate.
    pub not_after: Option<i64>,
    /// Tries that failed since the last success, and why the last one did.
    pub failures: u32,
    pub last_error: Option<String>,
}

/// How all certificates are. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Standings(Arc<Mutex<Vec<Standing>>>);

impl Standings {
    pub fn all(&self) -> Vec<Standing> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, all: Vec<Standing>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = all;
    }
}

/// Follows the answers to challenges in the store, for as long as it lives. Every node does.
pub async fn follow(store: Arc<dyn Store>, answers: watch::Sender<Arc<[ChallengeResponse]>>) {
    let mut changes = store.watch();
    loop {
        let text = match changes.next().await {
            None => return,
            Some(Change::Note { name, text, .. }) if *name == *ANSWERS => text,
            Some(Change::Reset { .. }) => store.note(ANSWERS).await.ok().flatten().unwrap_or_default(),
            Some(_) => continue,
        };
        let now: Arc<[ChallengeResponse]> = read_answers(&text).into();
        answers.send_if_modified(|known| {
            let differs = **known != *now;
            *known = now;
            differs
        });
    }
}

fn read_answers(text: &str) -> Vec<ChallengeResponse> {
    let mut answers: Vec<ChallengeResponse> = serde_json::from_str(text).unwrap_or_default();
    answers.truncate(MOST_ANSWERS);
    answers
}

/// Keeps certificates fresh.
pub struct Issuer {
    pub store: Arc<dyn Store>,
    pub authority: Arc<dyn Authority>,
    /// Seals the account.
    pub ring: Ring,
    pub settings: Settings,
    pub standings: Standings,
    /// The answers that this node gives, from [`follow`].
    pub answers: watch::Receiver<Arc<[ChallengeResponse]>>,
}

/// An ssl resource that is kept fresh.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ManagedSsl {
    id: String,
    domains: Vec<String>,
    /// Facts about its current certificate, if it has one.
    facts: Option<Facts>,
}

/// State of a target between two rounds.
#[derive(Debug, Default)]
struct Memory {
    failures: u32,
    last_error: Option<String>,
    /// Earliest next try; the wall clock does not move it.
    not_before: Option<Instant>,
    /// How much of its life a certificate is renewed earlier, in thousandths.
    jitter: i64,
}

impl Issuer {
    /// Runs for ever.
    pub async fn run(mut self) {
        let node = format!("{:032x}", fastrand::u128(..));
        let mut memories: BTreeMap<String, Memory> = BTreeMap::new();
        loop {
            let targets = self.targets().await;
            memories.retain(|id, _| targets.iter().any(|target| target.id == *id));
            let (mut next, mut held) = (LOOK, false);
            for target in &targets {
                let memory = memories
                    .entry(target.id.clone())
                    .or_insert_with(|| Memory { jitter: fastrand::i64(0..30), ..Memory::default() });
                let wait = u64::try_from(due(target, memory.jitter) - now()).unwrap_or(0);
                let rest = memory
                    .not_before
                    .map_or(Duration::ZERO, |at| at.saturating_duration_since(Instant::now()));
                let wait = Duration::from_secs(wait).max(rest);
                if !wait.is_zero() {
                    next = next.min(wait);
                    continue;
                }
                if !self.is_issuer(&node).await {
                    continue;
                }
                (next, held) = (SHORTEST, true);
                // Another node may have had it issued since the look.
                let Ok(stored) = self.store.get(&Key::new(Kind::Ssl, target.id.as_str())).await else {
                    continue;
                };
                let now_there = stored.and_then(|stored| facts(&stored.value));
                let target = ManagedSsl { facts: now_there, ..target.clone() };
                if due(&target, memory.jitter) <= now() {
                    self.renew(&target, memory).await;
                }
            }
            if held {
                self.release(&node).await;
            }
            let standing = |target: &ManagedSsl| {
                let memory = memories.get(&target.id);
                Standing {
                    id: target.id.clone(),
                    domains: target.domains.clone(),
                    not_after: target.facts.as_ref().map(|facts| facts.not_after),
                    failures: memory.map_or(0, |memory| memory.failures),
                    last_error: memory.and_then(|memory| memory.last_error.clone()),
                }
            };
            self.standings.set(targets.iter().map(standing).collect());
            tokio::time::sleep(next.max(SHORTEST)).await;
        }
    }

    async fn renew(&mut self, target: &ManagedSsl, memory: &mut Memory) {
        let names = target.domains.join(", ");
        tracing::info!(names, ssl = target.id, "acme: requesting a certificate");
        let issuing = tokio::time::timeout(self.settings.timeout, self.issue(target)).await;
        let late =
            || format!("not issued within {} s (sluice.acme.timeout)", self.settings.timeout.as_secs());
        match issuing.unwrap_or_else(|_| Err(late())) {
            Ok(life) => {
                tracing::info!(names, ssl = target.id, "acme: certificate issued");
                // A clock that is far ahead makes each new certificate due at once; the authority counts orders.
                let not_before = Some(Instant::now() + (life / 16).min(LONGEST_REST));
                *memory = Memory { jitter: memory.jitter, not_before, ..Memory::default() };
            }
            Err(why) => {
                memory.failures += 1;
                let pause =
                    self.settings.retry.saturating_mul(1 << memory.failures.min(12).saturating_sub(1));
                let pause = pause.min(LONGEST_PAUSE).mul_f64(1.0 + fastrand::f64() / 4.0);
                let retry_s = pause.as_secs();
                tracing::error!(names, ssl = target.id, error = why, retry_s, "acme: no certificate issued");
                memory.not_before = Some(Instant::now() + pause);
                memory.last_error = Some(why);
            }
        }
        // These names are proved, so their responses are no longer needed.
        let domains = target.domains.clone();
        let proved =
            move |answers: &mut Vec<ChallengeResponse>| answers.retain(|it| !domains.contains(&it.domain));
        if let Err(error) = self.write_answers(proved).await {
            tracing::debug!(error, "acme: challenge responses stay in the store");
        }
    }

    /// Has a certificate issued and kept; gives how long it is valid.
    async fn issue(&self, target: &ManagedSsl) -> Result<Duration, String> {
        let kept = self.store.note(ACCOUNT).await.map_err(|error| error.to_string())?;
        // One from before there was a keyring is in the clear.
        let opened = kept.as_ref().map(|text| self.ring.open(text).unwrap_or_else(|| text.clone()));
        let account = self.authority.account(opened).await?;
        let sealed = match self.ring.seal(&account) {
            Some(sealed) => sealed,
            // Without keys nothing is encrypted, as in APISIX.
            None if self.ring.is_empty() => account.clone(),
            None => return Err("the account could not be encrypted".to_owned()),
        };
        // Also where only the first key of the keyring has changed.
        if kept.as_ref() != Some(&sealed) {
            self.note(ACCOUNT, sealed)
                .await
                .map_err(|error| format!("the account cannot be kept: {error}"))?;
        }
        let Issued { chain, key } =
            self.authority.issue(&account, &target.domains, self.settings.challenge, self).await?;
        let facts = certs::facts(&chain);
        let life = facts.map_or(0, |facts| u64::try_from(facts.not_after - facts.not_before).unwrap_or(0));
        self.keep(target, chain, key).await?;
        Ok(Duration::from_secs(life))
    }

    /// Writes a certificate into its ssl resource.
    async fn keep(&self, target: &ManagedSsl, chain: String, private: String) -> Result<(), String> {
        let key = Key::new(Kind::Ssl, target.id.as_str());
        let (id, domains) = (target.id.clone(), target.domains.clone());
        let message = format!("certificate for {}", domains.join(", "));
        let decide = move |view: &dyn crate::store::View| {
            let row = view.get(&key);
            let now = unix_ms() / 1000;
            let mut value = match row {
                Some(row) => row.value(),
                None => json!({"id": id, "snis": domains, "labels": {LABEL: "true"}, "create_time": now}),
            };
            value["cert"] = chain.as_str().into();
            value["key"] = private.as_str().into();
            value["update_time"] = now.into();
            let Resource::Ssl(ssl) = Resource::parse(Kind::Ssl, &key.id, &value)? else {
                return Err(Refused::Missing("this is not an ssl resource"));
            };
            certificates::check(&ssl, now)?;
            let by = Step::By { author: "acme".to_owned(), message: message.clone() };
            Ok(vec![Step::Put { key: key.clone(), value, ttl: None }, by])
        };
        let written = self.store.write(Box::new(decide)).await;
        written.map(drop).map_err(|error| format!("the certificate cannot be kept: {error}"))
    }

    /// Certificates to renew, by id: those of the boot file, and ssl resources with the label.
    async fn targets(&self) -> Vec<ManagedSsl> {
        let mut targets: BTreeMap<String, ManagedSsl> = BTreeMap::new();
        for domains in &self.settings.certificates {
            let Some(first) = domains.first() else { continue };
            let id = format!("acme-{first}");
            let facts = match self.store.get(&Key::new(Kind::Ssl, id.as_str())).await {
                Ok(stored) => stored.and_then(|stored| facts(&stored.value)),
                Err(error) => {
                    tracing::error!(ssl = id, %error, "acme: cannot read the certificate");
                    continue;
                }
            };
            targets.insert(id.clone(), ManagedSsl { id, domains: domains.clone(), facts });
        }
        let Ok((rows, _)) = self.store.rows(Kind::Ssl, "").await else { return Vec::new() };
        // Most have no such label, and need not be taken apart.
        for row in rows.iter().filter(|row| row.json.contains("\"acme\"")) {
            let value = row.value();
            let asks = value.pointer("/labels/acme").and_then(Value::as_str) == Some("true");
            if !asks || targets.contains_key(&row.key.id) {
                continue;
            }
            let snis = value.get("snis").and_then(Value::as_array).into_iter().flatten();
            let names = snis.chain(value.get("sni")).filter_map(Value::as_str).map(str::to_ascii_lowercase);
            let domains: Vec<String> = names.collect();
            if domains.is_empty() || domains.iter().any(|name| name.contains('*')) {
                continue;
            }
            let id = row.key.id.clone();
            targets.insert(id.clone(), ManagedSsl { id, domains, facts: facts(&value) });
        }
        targets.into_values().collect()
    }

    /// Whether this node is the one that issues, for as long as one certificate may take.
    async fn is_issuer(&self, node: &str) -> bool {
        let until = unix_ms() + u64::try_from(self.settings.timeout.as_millis()).unwrap_or(0) + 30_000;
        let lease = json!({"node": node, "until": until}).to_string();
        let node = node.to_owned();
        let decide = move |view: &dyn crate::store::View| {
            let (held_by, ends) = holder(view);
            let now = unix_ms();
            // One that ends so late was written by a clock that was set back since, and must not keep all from
            // issuing until then.
            let is_over = ends < now || ends > now.saturating_add(LONGEST_LEASE).max(until);
            match is_over || held_by.as_deref() == Some(&*node) {
                true => Ok(vec![Step::Note { name: ISSUER, text: lease.clone() }]),
                false => Err(StoreError::Changed.into()),
            }
        };
        match self.store.write(Box::new(decide)).await {
            Ok(_) => true,
            Err(Refused::Store(StoreError::Changed)) => false,
            Err(error) => {
                tracing::debug!(%error, "acme: no lease");
                false
            }
        }
    }

    /// Lets another node issue at once.
    async fn release(&self, node: &str) {
        let node = node.to_owned();
        let decide = move |view: &dyn crate::store::View| {
            Ok(match holder(view).0.as_deref() == Some(&*node) {
                true => vec![Step::Note { name: ISSUER, text: String::new() }],
                false => Vec::new(),
            })
        };
        if let Err(error) = self.store.write(Box::new(decide)).await {
            tracing::debug!(%error, "acme: the lease stays until it ends");
        }
    }

    async fn note(&self, name: &'static str, text: String) -> Result<(), Refused> {
        self.store.write(Box::new(move |_| Ok(vec![Step::Note { name, text: text.clone() }]))).await.map(drop)
    }

    async fn write_answers(
        &self,
        change: impl Fn(&mut Vec<ChallengeResponse>) + Send + 'static,
    ) -> Result<(), String> {
        let decide = move |view: &dyn crate::store::View| {
            let mut answers = view.note(ANSWERS).map(|text| read_answers(&text)).unwrap_or_default();
            let now = unix_ms();
            answers.retain(|answer| answer.until > now && answer.until < now.saturating_add(LONGEST_LEASE));
            change(&mut answers);
            let text = serde_json::to_string(&answers).unwrap_or_default();
            Ok(vec![Step::Note { name: ANSWERS, text }])
        };
        let written = self.store.write(Box::new(decide)).await;
        written.map(drop).map_err(|error| format!("the answer to a challenge cannot be kept: {error}"))
    }
}

impl Prover for Issuer {
    fn prove(&self, mut answer: ChallengeResponse) -> Asking<'_, ()> {
        let patience = u64::try_from(self.settings.timeout.as_millis()).unwrap_or(0);
        answer.until = unix_ms() + patience;
        let token = answer.token.clone();
        Box::pin(async move {
            self.write_answers(move |answers| {
                if answers.len() < MOST_ANSWERS {
                    answers.push(answer.clone());
                }
            })
            .await?;
            let mut known = self.answers.clone();
            let heard = known.wait_for(|answers| answers.iter().any(|answer| answer.token == token));
            if !matches!(tokio::time::timeout(KNOWN, heard).await, Ok(Ok(_))) {
                return Err("the answer to a challenge did not reach the workers".to_owned());
            }
            if self.store.is_shared() {
                tokio::time::sleep(OTHERS).await;
            }
            Ok(())
        })
    }
}

/// Which node issues, and until when in milliseconds since 1970.
fn holder(view: &dyn crate::store::View) -> (Option<String>, u64) {
    let text = view.note(ISSUER).unwrap_or_default();
    let held: Value = serde_json::from_str(&text).unwrap_or_default();
    (held["node"].as_str().map(str::to_owned), held["until"].as_u64().unwrap_or(0))
}

fn facts(ssl: &Value) -> Option<Facts> {
    certs::facts(ssl.get("cert")?.as_str()?)
}

/// When a certificate is to be renewed, in seconds since 1970: after two thirds of its life, a little less. At once where
/// it is not for these names, or made by its owner.
fn due(target: &ManagedSsl, jitter: i64) -> i64 {
    let Some(facts) = &target.facts else { return 0 };
    let covers =
        target.domains.iter().all(|name| facts.names.iter().any(|own| own.eq_ignore_ascii_case(name)));
    if !covers || facts.is_self_signed {
        return 0;
    }
    let life = (facts.not_after - facts.not_before).max(0);
    facts.not_before + life / 3 * 2 - life / 1000 * jitter
}

fn now() -> i64 {
    i64::try_from(unix_ms() / 1000).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_renewed_at_two_thirds_of_its_life() {
        let facts = |names: &[&str]| Facts {
            not_before: 1000,
            not_after: 91_000,
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            is_self_signed: false,
        };
        let target = |facts| ManagedSsl { id: "1".into(), domains: vec!["a.test".into()], facts };
        assert_eq!(due(&target(Some(facts(&["A.test", "b.test"]))), 0), 61_000);
        assert_eq!(due(&target(Some(facts(&["a.test"]))), 20), 59_200, "not all at once");
        assert_eq!(due(&target(Some(facts(&["b.test"]))), 0), 0, "it is for another name");
        assert_eq!(due(&target(Some(Facts { is_self_signed: true, ..facts(&["a.test"]) })), 0), 0);
        assert_eq!(due(&target(None), 0), 0);
    }

    /// Knows one account, remembers what it was shown of it, and issues nothing.
    #[derive(Default)]
    struct Fake(Mutex<Vec<Option<String>>>);

    const PRIVATE: &str = r#"{"key_pkcs8":"canary-of-this-test"}"#;

    impl Authority for Fake {
        fn account(&self, kept: Option<String>) -> Asking<'_, String> {
            self.0.lock().unwrap().push(kept);
            Box::pin(async { Ok(PRIVATE.to_owned()) })
        }

        fn issue<'a>(
            &'a self,
            account: &'a str,
            _: &'a [String],
            _: Challenge,
            _: &'a dyn Prover,
        ) -> Asking<'a, Issued> {
            assert_eq!(account, PRIVATE);
            Box::pin(async { Err("no".to_owned()) })
        }
    }

    fn issuer(store: Arc<dyn Store>, authority: Arc<dyn Authority>, keys: &[&str]) -> Issuer {
        Issuer {
            store,
            authority,
            ring: Ring::new(keys).unwrap(),
            settings: Settings {
                certificates: Vec::new(),
                challenge: Challenge::Http01,
                timeout: KNOWN,
                retry: KNOWN,
            },
            standings: Standings::default(),
            answers: watch::channel(Arc::default()).1,
        }
    }

    #[tokio::test]
    async fn the_account_is_kept_sealed_however_it_was_kept_before() {
        const KEYS: [&str; 2] = ["qeddd145sfvddff3", "edd1c9f0985e76a2"];
        let (store, authority) = (Arc::new(crate::store::Memory::default()), Arc::new(Fake::default()));
        let issuer = |keys: &[&str]| issuer(store.clone(), authority.clone(), keys);
        let target = ManagedSsl { id: "1".into(), domains: vec!["a.test".into()], facts: None };
        let tried = async |keys: &[&str]| {
            assert_eq!(issuer(keys).issue(&target).await, Err("no".to_owned()));
            let shown = authority.0.lock().unwrap().pop().unwrap();
            (shown, store.note(ACCOUNT).await.unwrap().unwrap())
        };
        let (shown, first) = tried(&KEYS[1..]).await;
        assert_eq!(shown, None);
        assert!(!first.contains("canary") && !first.contains("key_pkcs8"), "{first}");
        // A new key of the keyring.
        let (shown, second) = tried(&KEYS).await;
        assert_eq!(shown.as_deref(), Some(PRIVATE));
        assert_eq!(second, Ring::new(&KEYS).unwrap().seal(PRIVATE).unwrap());
        // One that was written unsealed is read, and sealed.
        issuer(&KEYS).note(ACCOUNT, PRIVATE.to_owned()).await.unwrap();
        assert_eq!(tried(&KEYS).await, (Some(PRIVATE.to_owned()), second));
    }

    #[tokio::test]
    async fn one_node_at_a_time_issues() {
        let issuer = issuer(Arc::new(crate::store::Memory::default()), Arc::new(Fake::default()), &[]);
        assert!(issuer.is_issuer("a").await && issuer.is_issuer("a").await);
        assert!(!issuer.is_issuer("b").await);
        issuer.release("b").await;
        assert!(!issuer.is_issuer("b").await, "it was not for b to release");
        issuer.release("a").await;
        assert!(issuer.is_issuer("b").await);
        // One that has ended.
        issuer.note(ISSUER, json!({"node": "a", "until": unix_ms() - 1}).to_string()).await.unwrap();
        assert!(issuer.is_issuer("b").await);
        // One that was written before the clock was set back by a year; and one of a node with more patience.
        for (ends, ended) in [(31_536_000_000, true), (600_000, false)] {
            let lease = json!({"node": "a", "until": unix_ms() + ends});
            issuer.note(ISSUER, lease.to_string()).await.unwrap();
            assert_eq!(issuer.is_issuer("b").await, ended, "{ends}");
        }
    }
}
