//! hot path
//!
//! `$ssl_…`: the client's TLS session, as in nginx.

use super::{Plain, ReadResult};
use crate::client::{ClientCertificate, TlsSession, Verdict};

pub(super) fn read<'a>(which: Plain, session: &'a TlsSession, now: u64, out: &mut Vec<u8>) -> ReadResult<'a> {
    let certificate = session.certificate.as_deref();
    let of = |part: fn(&ClientCertificate) -> &str| certificate.map(part).into();
    match which {
        Plain::SslAlpn => filled(session.alpn),
        Plain::SslCipher => ReadResult::Borrowed(session.cipher.as_bytes()),
        Plain::SslCurve => ReadResult::Borrowed(session.curve.as_bytes()),
        Plain::SslProtocol => ReadResult::Borrowed(session.protocol.as_bytes()),
        Plain::SslReused => ReadResult::Borrowed(if session.reused { b"r" } else { b"." }),
        Plain::SslServerName => session.server_name.as_deref().into(),
        Plain::SslClientVerify => match &session.verdict {
            Verdict::None => ReadResult::Borrowed(b"NONE"),
            Verdict::Success => ReadResult::Borrowed(b"SUCCESS"),
            Verdict::Failed(why) => {
                out.extend_from_slice(b"FAILED:");
                out.extend_from_slice(why.as_bytes());
                ReadResult::Written
            }
        },
        Plain::SslClientSubject => of(|certificate| &certificate.subject),
        Plain::SslClientIssuer => of(|certificate| &certificate.issuer),
        Plain::SslClientSerial => of(|certificate| &certificate.serial),
        Plain::SslClientFingerprint => of(|certificate| &certificate.fingerprint),
        Plain::SslClientStart => of(|certificate| &certificate.not_before),
        Plain::SslClientEnd => of(|certificate| &certificate.not_after),
        Plain::SslClientRemain => match certificate {
            Some(certificate) => {
                let days =
                    certificate.ends.saturating_sub(i64::try_from(now).unwrap_or(i64::MAX)).max(0) / 86_400;
                out.extend_from_slice(days.to_string().as_bytes());
                ReadResult::Written
            }
            None => ReadResult::Absent,
        },
        Plain::SslClientRaw => {
            pem(certificate, out, |pem, out| out.extend_from_slice(pem.trim_end().as_bytes()))
        }
        // Formatted as a header value with continuation lines.
        Plain::SslClientCert => pem(certificate, out, |pem, out| {
            out.extend_from_slice(pem.trim_end().replace('\n', "\n\t").as_bytes());
        }),
        Plain::SslClientEscaped => pem(certificate, out, |pem, out| {
            for byte in pem.bytes() {
                match byte {
                    b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(byte),
                    other => out.extend_from_slice(format!("%{other:02X}").as_bytes()),
                }
            }
        }),
        _ => ReadResult::Absent,
    }
}

fn pem<'a>(
    certificate: Option<&ClientCertificate>,
    out: &mut Vec<u8>,
    write: impl FnOnce(&str, &mut Vec<u8>),
) -> ReadResult<'a> {
    match certificate {
        Some(certificate) => {
            write(&certificate.pem(), out);
            ReadResult::Written
        }
        None => ReadResult::Absent,
    }
}

fn filled(text: &str) -> ReadResult<'_> {
    if text.is_empty() { ReadResult::Absent } else { ReadResult::Borrowed(text.as_bytes()) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::testing::Probe;
    use crate::vars::Var;

    fn read_all(session: Option<TlsSession>) -> Vec<Option<String>> {
        let mut probe = Probe::default();
        probe.client.session = session.map(Arc::new);
        let x = probe.exchange();
        let names = [
            "ssl_protocol",
            "ssl_server_name",
            "ssl_session_reused",
            "ssl_client_verify",
            "ssl_client_s_dn",
            "ssl_client_escaped_cert",
        ];
        let text = |name| Some(String::from_utf8(Var::parse(name).of(&x)?.into_owned()).unwrap());
        names.into_iter().map(text).collect()
    }

    #[test]
    fn session_variables_are_read() {
        assert_eq!(read_all(None), [const { None::<String> }; 6], "without TLS all are absent");
        let text = |text: &str| Some(text.to_owned());
        let anonymous = TlsSession { protocol: "TLSv1.3", reused: true, ..TlsSession::default() };
        assert_eq!(read_all(Some(anonymous)), [text("TLSv1.3"), None, text("r"), text("NONE"), None, None]);
        let certificate = ClientCertificate {
            subject: "CN=c".to_owned(),
            issuer: String::new(),
            serial: String::new(),
            fingerprint: String::new(),
            not_before: String::new(),
            not_after: String::new(),
            ends: 0,
            der: vec![1],
        };
        let known = TlsSession {
            protocol: "TLSv1.2",
            server_name: Some("a.com".into()),
            verdict: Verdict::Failed("expired".into()),
            certificate: Some(Box::new(certificate)),
            ..TlsSession::default()
        };
        assert_eq!(
            read_all(Some(known)),
            [
                text("TLSv1.2"),
                text("a.com"),
                text("."),
                text("FAILED:expired"),
                text("CN=c"),
                text("-----BEGIN%20CERTIFICATE-----%0AAQ%3D%3D%0A-----END%20CERTIFICATE-----%0A")
            ]
        );
    }
}
