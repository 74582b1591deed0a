//! Google service accounts: the account's key signs a token request (RFC 7523), and the access token is kept for as long
//! as it holds.

use std::collections::HashMap;
use std::io::{self, Read};
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use hyper::Method;
use model::secret::GcpAuth;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;

use crate::http::{Question, Server, Timeouts, Trust, encoded};

const GRANT: &str = "urn:ietf:params:oauth:grant-type:jwt-bearer";
/// Seconds before its end from which on a token is not used.
const MARGIN: u64 = 60;
/// Accounts whose tokens are kept.
const MOST_ACCOUNTS: usize = 64;
/// The longest answer to a token request, in bytes.
const MOST: usize = 1 << 20;
/// The longest file of an account, in bytes.
const LONGEST_FILE: u64 = 64 << 10;

/// Access tokens of service accounts, by everything they were asked for with. Each has a lock of its own, so that
/// an account whose server hangs holds up no other.
#[derive(Debug, Default)]
pub(crate) struct Tokens(std::sync::Mutex<HashMap<Account, Slot>>);

type Account = (String, String, String, String);
/// Locked while a token is asked for.
pub(crate) type Slot = Arc<Mutex<Option<Token>>>;

impl Tokens {
    /// The place of an account's token. It is kept if there is room.
    pub(crate) fn of(&self, account: &GcpAuth) -> Slot {
        let GcpAuth { client_email, private_key, token_uri, scope, .. } = account;
        let account = (client_email.clone(), private_key.clone(), token_uri.clone(), scope.join(" "));
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let holds = |slot: &Slot| match slot.try_lock() {
            Ok(token) => token.as_ref().is_some_and(|token| token.until > Instant::now()),
            Err(_) => true,
        };
        kept.retain(|_, slot| Arc::strong_count(slot) > 1 || holds(slot));
        if kept.len() >= MOST_ACCOUNTS && !kept.contains_key(&account) {
            return Slot::default();
        }
        kept.entry(account).or_default().clone()
    }
}

pub(crate) struct Token {
    /// As `Authorization` has it.
    value: String,
    until: Instant,
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Token").field("until", &self.until).finish_non_exhaustive()
    }
}

/// Values that the file of an account may leave out.
pub(crate) struct Defaults {
    pub scope: &'static str,
    pub entries_uri: &'static str,
}

/// Reads the file of an account.
///
/// # Errors
/// It cannot be read, or is no account; in words that do not repeat it.
pub(crate) async fn of_file(path: &str, defaults: &Defaults) -> Result<GcpAuth, String> {
    let failed = |why: String| format!("auth_file {path}: {why}");
    let file = path.to_owned();
    // The disk may be slow.
    let read = tokio::task::spawn_blocking(move || read(Path::new(&file))).await;
    let text = read.map_err(|error| failed(error.to_string()))?.map_err(|error| failed(error.to_string()))?;
    let found: FileAccount = serde_json::from_slice(&text)
        .map_err(|_| failed("it must be the JSON of a service account".to_owned()))?;
    let default = |text: Option<String>, default: &str| text.unwrap_or_else(|| default.to_owned());
    Ok(GcpAuth {
        client_email: found.client_email,
        private_key: found.private_key,
        project_id: found.project_id,
        token_uri: default(found.token_uri, "https://oauth2.googleapis.com/token"),
        scope: match found.scopes.or(found.scope) {
            Some(Value::String(one)) => vec![one],
            Some(Value::Array(all)) => all.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            _ => vec![defaults.scope.to_owned()],
        },
        entries_uri: default(found.entries_uri, defaults.entries_uri),
    })
}

/// A server of Google's, or one in its place.
///
/// # Errors
/// The address is invalid, in words.
pub(crate) fn server(uri: &str, verify: bool, trust: &Trust) -> Result<Server, String> {
    let tls = if verify { &trust.verifying } else { &trust.trusting };
    Ok(Server::parse(uri, tls)?.resolved_by(trust.names.clone()))
}

/// Reads the file of an account: a small regular one, since a holder of the admin key names it.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    // Opening a FIFO would wait for a writer.
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    std::fs::File::open(path)?.take(LONGEST_FILE + 1).read_to_end(&mut text)?;
    if text.len() as u64 > LONGEST_FILE {
        return Err(io::Error::other(format!("it is longer than {LONGEST_FILE} bytes")));
    }
    Ok(text)
}

/// The file of an account: Google's fields, and those that APISIX reads besides.
#[derive(Deserialize)]
struct FileAccount {
    #[serde(default)]
    client_email: String,
    private_key: String,
    project_id: String,
    token_uri: Option<String>,
    scope: Option<Value>,
    scopes: Option<Value>,
    entries_uri: Option<String>,
}

/// An access token, from before or asked for now.
pub(crate) async fn token(
    account: &GcpAuth,
    verify: bool,
    trust: &Trust,
    slot: &Mutex<Option<Token>>,
    timeouts: Timeouts,
) -> Result<String, String> {
    // One account is asked for once, however many of its secrets wait.
    let mut kept = slot.lock().await;
    if let Some(token) = kept.as_ref().filter(|token| token.until > Instant::now()) {
        return Ok(token.value.clone());
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let assertion = assertion(account, &account.scope.join(" "), now)?;
    let server = server(&account.token_uri, verify, trust)?;
    let body = format!("grant_type={}&assertion={assertion}", encoded(GRANT));
    let headers = [("content-type", "application/x-www-form-urlencoded")];
    let question = Question { method: Method::POST, path: "", headers: &headers, body: Bytes::from(body) };
    let answer = server.send(question, timeouts, Duration::ZERO, MOST).await?;
    if answer.status != 200 {
        return Err(format!("{}: no token, status {}", server.authority, answer.status));
    }
    // The error does not repeat the text, which may hold a secret.
    let body: Value =
        serde_json::from_slice(&answer.body).map_err(|_| "the answer is not JSON".to_owned())?;
    let Some(value) = body.get("access_token").and_then(Value::as_str) else {
        return Err(format!("{}: the answer has no access_token", server.authority));
    };
    let kind = body.get("token_type").and_then(Value::as_str).unwrap_or("Bearer");
    let lives = body.get("expires_in").and_then(Value::as_u64).unwrap_or(0);
    let value = format!("{kind} {value}");
    // A token is kept for a day at most, even if the answer grants more.
    let until = Instant::now() + Duration::from_secs(lives.saturating_sub(MARGIN).min(86_400));
    *kept = Some(Token { value: value.clone(), until });
    Ok(value)
}

/// Forgets a token that was refused, unless another one took its place.
pub(crate) async fn forget(slot: &Mutex<Option<Token>>, token: &str) {
    slot.lock().await.take_if(|kept| kept.value == token);
}

/// A token request, signed by the account (JWT, RS256).
fn assertion(account: &GcpAuth, scope: &str, now: u64) -> Result<String, String> {
    let wrong = |what: &str| format!("private_key of the account: {what}");
    let der = PrivateKeyDer::from_pem_slice(account.private_key.as_bytes())
        .map_err(|_| wrong("it must be the PEM of a private key"))?;
    let pair = match &der {
        PrivateKeyDer::Pkcs8(der) => RsaKeyPair::from_pkcs8(der.secret_pkcs8_der()),
        PrivateKeyDer::Pkcs1(der) => RsaKeyPair::from_der(der.secret_pkcs1_der()),
        _ => return Err(wrong("it must be an RSA key")),
    };
    let pair = pair.map_err(|_| wrong("it must be an RSA key"))?;
    let claims = json!({
        "iss": account.client_email, "aud": account.token_uri, "scope": scope, "iat": now, "exp": now + 3600,
    });
    let header = json!({"alg": "RS256", "typ": "JWT"});
    let encode = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let text = format!("{}.{}", encode(header), encode(claims));
    let mut signature = vec![0; pair.public_modulus_len()];
    pair.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), text.as_bytes(), &mut signature)
        .map_err(|_| wrong("signing with it failed"))?;
    Ok(format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_small_regular_file_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("account.json");
        std::fs::write(&file, "{}").unwrap();
        assert_eq!(read(&file).unwrap(), b"{}");
        std::fs::write(&file, vec![b' '; LONGEST_FILE as usize + 1]).unwrap();
        assert_eq!(read(&file).unwrap_err().to_string(), "it is longer than 65536 bytes");
        for other in [folder.path(), Path::new("/dev/zero")] {
            assert_eq!(read(other).unwrap_err().to_string(), "it is not a regular file");
        }
    }
}
