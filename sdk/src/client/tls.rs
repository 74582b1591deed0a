//! What a client's TLS handshake has agreed on, and what it told of the client.

/// One TLS session.
#[derive(Debug, Default)]
pub struct TlsSession {
    /// The name the client asked for (SNI), in lower case.
    pub server_name: Option<Box<str>>,
    /// `TLSv1.3` and the like.
    pub protocol: &'static str,
    /// As OpenSSL names it.
    pub cipher: &'static str,
    /// The key exchange, as OpenSSL names it.
    pub curve: &'static str,
    /// The client has resumed an earlier session.
    pub reused: bool,
    /// `h3`, `h2`, `http/1.1` or empty.
    pub alpn: &'static str,
    pub verdict: Verdict,
    /// A digest of the rules that the verdict follows: the authorities and the depth. `None` where the client was
    /// not asked for a certificate.
    pub rules: Option<[u8; 32]>,
    /// The client's own, believed or not.
    pub certificate: Option<Box<ClientCertificate>>,
}

/// Whether a client has proved who it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Verdict {
    /// It showed no certificate, or was not asked for one.
    #[default]
    None,
    Success,
    /// Its certificate is not trusted, and why.
    Failed(Box<str>),
}

/// A certificate that a client has shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificate {
    /// RFC 2253.
    pub subject: String,
    pub issuer: String,
    /// In hexadecimal.
    pub serial: String,
    /// SHA-1, in hexadecimal.
    pub fingerprint: String,
    pub not_before: String,
    pub not_after: String,
    /// [`not_after`](Self::not_after) in seconds since 1970.
    pub ends: i64,
    pub der: Vec<u8>,
}

impl ClientCertificate {
    /// The certificate in PEM.
    pub fn pem(&self) -> String {
        use base64::Engine;
        let text = base64::engine::general_purpose::STANDARD.encode(&self.der);
        let mut out = String::from("-----BEGIN CERTIFICATE-----\n");
        let mut rest = &text[..];
        while !rest.is_empty() {
            let (line, more) = rest.split_at(rest.len().min(64));
            out.push_str(line);
            out.push('\n');
            rest = more;
        }
        out.push_str("-----END CERTIFICATE-----\n");
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pem_has_lines_of_64() {
        let certificate = ClientCertificate {
            subject: String::new(),
            issuer: String::new(),
            serial: String::new(),
            fingerprint: String::new(),
            not_before: String::new(),
            not_after: String::new(),
            ends: 0,
            der: vec![0; 49],
        };
        let pem = certificate.pem();
        let lines: Vec<&str> = pem.lines().collect();
        assert_eq!(lines[0], "-----BEGIN CERTIFICATE-----");
        assert_eq!((lines[1].len(), lines[2].len()), (64, 4));
        assert_eq!((lines[3], lines.len()), ("-----END CERTIFICATE-----", 4));
    }
}
