//! The parts of ACME put together: who asks for certificates, and what workers answer to challenges.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use adapters::Trust;
use adapters::acme::{Acme, proof};
use anyhow::Context;
use arc_swap::ArcSwap;
use bytes::Bytes;
use control::acme::{self, Challenge, ChallengeResponse, Issuer, Settings, Standings};
use control::store::{Ring, Store};
use model::boot::{self, Boot, Role};
use proxy::HandoffReply;
use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use tokio::sync::watch;

/// Where HTTP-01 looks.
const PLACE: &[u8] = b"/.well-known/acme-challenge/";

/// Whether a target is in the place of answers.
pub fn is_for(target: &str) -> bool {
    target.as_bytes().starts_with(PLACE)
}

/// Answers to challenges, which workers look up without a lock.
#[derive(Debug, Default)]
pub struct Answers(ArcSwap<KnownAnswers>);

#[derive(Debug, Default)]
struct KnownAnswers {
    by_token: HashMap<String, Bytes>,
    by_domain: HashMap<String, Arc<ServerConfig>>,
}

impl Answers {
    /// Whether a path is that of an answer.
    pub fn takes(&self, path: &[u8]) -> bool {
        path.strip_prefix(PLACE).is_some_and(|token| self.answer(token).is_some())
    }

    fn answer(&self, token: &[u8]) -> Option<Bytes> {
        self.0.load().by_token.get(std::str::from_utf8(token).ok()?).cloned()
    }

    /// The answer to a request for a path that [`takes`](Answers::takes) took.
    pub fn reply(&self, target: &str) -> HandoffReply {
        let path = target.split('?').next().unwrap_or(target);
        let found = path.as_bytes().strip_prefix(PLACE).and_then(|token| self.answer(token));
        let (status, body) = match found {
            Some(answer) => (200, answer),
            // It was taken back meanwhile.
            None => (404, Bytes::new()),
        };
        let kind = ("content-type".to_owned(), b"application/octet-stream".to_vec());
        HandoffReply { status, headers: vec![kind], body }
    }

    /// Returns the configuration for a TLS-ALPN-01 handshake, which validates a name.
    pub fn proof(&self, name: &str) -> Option<Arc<ServerConfig>> {
        self.0.load().by_domain.get(&name.to_ascii_lowercase()).cloned()
    }

    /// Takes over what the store has, for ever.
    async fn keep(
        self: Arc<Answers>,
        mut answers: watch::Receiver<Arc<[ChallengeResponse]>>,
        known: watch::Sender<Arc<[ChallengeResponse]>>,
        challenge: Challenge,
        provider: Arc<CryptoProvider>,
    ) {
        loop {
            let now = answers.borrow_and_update().clone();
            let mut fresh = KnownAnswers::default();
            for answer in &*now {
                match challenge {
                    Challenge::Http01 => {
                        fresh.by_token.insert(answer.token.clone(), Bytes::from(answer.text.clone()));
                    }
                    Challenge::TlsAlpn01 => match proof(answer, &provider) {
                        Ok(config) => _ = fresh.by_domain.insert(answer.domain.to_ascii_lowercase(), config),
                        Err(error) => {
                            tracing::error!(name = answer.domain, error, "acme: no challenge certificate");
                        }
                    },
                }
            }
            self.0.store(Arc::new(fresh));
            known.send_replace(now);
            if answers.changed().await.is_err() {
                return;
            }
        }
    }
}

/// Everything about ACME in a running gateway.
pub struct Running {
    pub answers: Arc<Answers>,
    pub standings: Standings,
    issuer: Option<Issuer>,
}

/// Begins to follow the answers, if the boot file asks for certificates.
///
/// # Errors
/// A file that cannot be read, a store that cannot be written.
pub fn start(
    boot: &Boot,
    store: &Arc<dyn Store>,
    trust: &Trust,
    provider: &Arc<CryptoProvider>,
) -> anyhow::Result<Option<Running>> {
    let Some(wanted) = &boot.acme else { return Ok(None) };
    anyhow::ensure!(
        store.writable(),
        "sluice.acme needs a store that can be written\n  help: certificates are kept in it; use \
         `config_provider: embedded`, or get them elsewhere"
    );
    let tls = match &wanted.ca {
        None => trust.verifying.clone(),
        Some(file) => trust
            .of_file(Path::new(file))
            .map_err(anyhow::Error::msg)
            .with_context(|| format!("sluice.acme.ca: {file}"))?,
    };
    let challenge = match wanted.challenge {
        boot::AcmeChallenge::Http01 => Challenge::Http01,
        boot::AcmeChallenge::TlsAlpn01 => Challenge::TlsAlpn01,
    };
    let (in_store, from_store) = watch::channel::<Arc<[ChallengeResponse]>>(Arc::default());
    let (known, known_here) = watch::channel::<Arc<[ChallengeResponse]>>(Arc::default());
    let answers = Arc::<Answers>::default();
    control::tasks::spawn(acme::follow(store.clone(), in_store));
    control::tasks::spawn(answers.clone().keep(from_store, known, challenge, provider.clone()));
    let standings = Standings::default();
    let authority = Acme {
        directory: wanted.directory.clone(),
        email: wanted.email.clone(),
        external: wanted.eab.clone().map(|eab| (eab.kid, eab.hmac_key)),
        tls,
        names: trust.names.clone(),
    };
    let issuer = (boot.role != Role::DataPlane).then(|| {
        anyhow::Ok(Issuer {
            store: store.clone(),
            authority: Arc::new(authority),
            ring: Ring::new(&boot.data_encryption.keyring)?,
            settings: Settings {
                certificates: wanted.domains.clone(),
                challenge,
                timeout: wanted.timeout,
                retry: wanted.retry,
            },
            standings: standings.clone(),
            answers: known_here,
        })
    });
    Ok(Some(Running { answers, standings, issuer: issuer.transpose()? }))
}

impl Running {
    /// Begins to ask for certificates.
    pub fn issue(&mut self) {
        if let Some(issuer) = self.issuer.take() {
            control::tasks::spawn(issuer.run());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_given_to_their_own_paths_alone() {
        let answers = Answers::default();
        let mut known = KnownAnswers::default();
        known.by_token.insert("a-token_1".to_owned(), Bytes::from_static(b"a-token_1.print"));
        answers.0.store(Arc::new(known));
        assert!(answers.takes(b"/.well-known/acme-challenge/a-token_1"));
        for path in ["/", "/.well-known/acme-challenge/", "/.well-known/acme-challenge/other", "/a-token_1"] {
            assert!(!answers.takes(path.as_bytes()), "{path}");
        }
        let reply = answers.reply("/.well-known/acme-challenge/a-token_1?x");
        assert_eq!((reply.status, &reply.body[..]), (200, &b"a-token_1.print"[..]));
        assert_eq!(answers.reply("/.well-known/acme-challenge/other").status, 404);
        assert!(answers.proof("a.test").is_none());
    }
}
