//! Logging in at a broker: SASL with PLAIN (RFC 4616) or SCRAM (RFC 5802, RFC 7677).

use std::num::NonZeroU32;

use aws_lc_rs::{constant_time, digest, hmac, pbkdf2, rand};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

/// Rounds that a broker may ask for, at most: some tenths of a second.
const ROUNDS: u32 = 100_000;

#[derive(Clone, Deserialize)]
pub(super) struct Login {
    mechanism: Mechanism,
    user: String,
    password: String,
}

#[derive(Debug, Clone, Copy, Deserialize)]
enum Mechanism {
    #[serde(rename = "PLAIN")]
    Plain,
    #[serde(rename = "SCRAM-SHA-256")]
    Scram256,
    #[serde(rename = "SCRAM-SHA-512")]
    Scram512,
}

/// The texts of a login.
pub(super) enum Steps<'a> {
    Plain(Option<Vec<u8>>),
    First(Scram<'a>),
    /// Its next text, and the signature that the server's answer must have.
    Final(Option<Vec<u8>>, Vec<u8>),
    Done,
}

pub(super) struct Scram<'a> {
    login: &'a Login,
    nonce: String,
    is_sent: bool,
}

impl Login {
    pub(super) fn mechanism(&self) -> &'static str {
        match self.mechanism {
            Mechanism::Plain => "PLAIN",
            Mechanism::Scram256 => "SCRAM-SHA-256",
            Mechanism::Scram512 => "SCRAM-SHA-512",
        }
    }

    /// # Errors
    /// The system gives no random bytes.
    pub(super) fn start(&self) -> Result<Steps<'_>, String> {
        if let Mechanism::Plain = self.mechanism {
            return Ok(Steps::Plain(Some(format!("\0{}\0{}", self.user, self.password).into_bytes())));
        }
        let mut bytes = [0; 18];
        rand::fill(&mut bytes).map_err(|_| "the system gives no random bytes")?;
        Ok(Steps::First(Scram { login: self, nonce: STANDARD.encode(bytes), is_sent: false }))
    }
}

impl Steps<'_> {
    /// The next text for the server; none at the end.
    pub(super) fn next_text(&mut self) -> Option<Vec<u8>> {
        match self {
            Steps::Plain(text) | Steps::Final(text, _) => text.take(),
            Steps::First(scram) if scram.is_sent => None,
            Steps::First(scram) => {
                scram.is_sent = true;
                Some(format!("n,,{}", scram.bare()).into_bytes())
            }
            Steps::Done => None,
        }
    }

    /// # Errors
    /// An answer that does not prove that the server knows the account.
    pub(super) fn answer(&mut self, text: &[u8]) -> Result<(), String> {
        let text = std::str::from_utf8(text).map_err(|_| "the broker's login is malformed")?;
        *self = match std::mem::replace(self, Steps::Done) {
            Steps::First(scram) => scram.last(text)?,
            Steps::Final(_, signature) => {
                let sent =
                    attribute(text, 'v').and_then(|value| STANDARD.decode(value).ok()).unwrap_or_default();
                constant_time::verify_slices_are_equal(&sent, &signature)
                    .map_err(|_| "the broker does not know the account")?;
                Steps::Done
            }
            Steps::Plain(_) | Steps::Done => Steps::Done,
        };
        Ok(())
    }
}

impl<'a> Scram<'a> {
    fn bare(&self) -> String {
        let user = self.login.user.replace('=', "=3D").replace(',', "=2C");
        format!("n={user},r={}", self.nonce)
    }

    /// The last text, for the server's first one.
    fn last(self, first: &str) -> Result<Steps<'a>, String> {
        let malformed = || "the broker's login is malformed".to_owned();
        let nonce =
            attribute(first, 'r').filter(|nonce| nonce.starts_with(&self.nonce)).ok_or_else(malformed)?;
        let salt = attribute(first, 's').and_then(|salt| STANDARD.decode(salt).ok()).ok_or_else(malformed)?;
        let rounds = attribute(first, 'i').and_then(|rounds| rounds.parse::<NonZeroU32>().ok());
        let rounds = rounds.filter(|rounds| rounds.get() <= ROUNDS).ok_or_else(malformed)?;
        let (derive, sign, hash, length) = match self.login.mechanism {
            Mechanism::Scram512 => (pbkdf2::PBKDF2_HMAC_SHA512, hmac::HMAC_SHA512, &digest::SHA512, 64),
            _ => (pbkdf2::PBKDF2_HMAC_SHA256, hmac::HMAC_SHA256, &digest::SHA256, 32),
        };
        let mut salted = vec![0; length];
        pbkdf2::derive(derive, rounds, &salt, self.login.password.as_bytes(), &mut salted);
        let signed = |key: &[u8], text: &[u8]| hmac::sign(&hmac::Key::new(sign, key), text).as_ref().to_vec();
        let client = signed(&salted, b"Client Key");
        // `biws` is `n,,`.
        let unproved = format!("c=biws,r={nonce}");
        let text = format!("{},{first},{unproved}", self.bare());
        let signature = signed(digest::digest(hash, &client).as_ref(), text.as_bytes());
        let proof: Vec<u8> = client.iter().zip(&signature).map(|(key, signature)| key ^ signature).collect();
        let expected = signed(&signed(&salted, b"Server Key"), text.as_bytes());
        let last = format!("{unproved},p={}", STANDARD.encode(proof));
        Ok(Steps::Final(Some(last.into_bytes()), expected))
    }
}

/// The value of an attribute of a text such as `r=a,s=b`.
fn attribute(text: &str, name: char) -> Option<&str> {
    text.split(',').find_map(|part| part.strip_prefix(name)?.strip_prefix('='))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 7677 section 3.
    #[test]
    fn scram_is_that_of_the_rfc() {
        let login =
            Login { mechanism: Mechanism::Scram256, user: "user".to_owned(), password: "pencil".to_owned() };
        let nonce = "rOprNGfwEbeRWgbNEkqO".to_owned();
        let mut steps = Steps::First(Scram { login: &login, nonce, is_sent: false });
        assert_eq!(steps.next_text().unwrap(), b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO");
        assert_eq!(steps.next_text(), None);
        let first = "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
        steps.answer(first.as_bytes()).unwrap();
        assert_eq!(
            String::from_utf8(steps.next_text().unwrap()).unwrap(),
            "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
        );
        assert_eq!(steps.answer(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="), Ok(()));
        assert_eq!(steps.next_text(), None);
    }

    #[test]
    fn servers_must_prove_themselves() {
        let login = Login { mechanism: Mechanism::Scram512, user: "u".to_owned(), password: "p".to_owned() };
        for first in
            ["", "r=other,s=AA==,i=1", "r=NONCEx,s=?,i=1", "r=NONCEx,s=AA==,i=0", "r=NONCEx,s=AA==,i=100001"]
        {
            let mut steps = Steps::First(Scram { login: &login, nonce: "NONCE".to_owned(), is_sent: true });
            assert!(steps.answer(first.as_bytes()).is_err(), "{first}");
        }
        let mut steps = Steps::First(Scram { login: &login, nonce: "NONCE".to_owned(), is_sent: true });
        steps.answer(b"r=NONCEx,s=AA==,i=1").unwrap();
        assert!(steps.next_text().is_some());
        assert!(steps.answer(b"v=AAAA").is_err());
    }
}
