//! The TLS session of a client, and its certificate.

/// One TLS session.
#[derive(Debug, Default)]
pub struct TlsSession {
    /// The server name the client sent (SNI), in lower case.
    pub server_name: Option<Box<str>>,
    /// Such as `TLSv1.3`.
    pub protocol: &'static str,
    /// The OpenSSL name.
    pub cipher: &'static str,
    /// The key exchange; the OpenSSL name.
    pub curve: &'static str,
    /// Whether the client resumed an earlier session.
    pub reused: bool,
    /// `h3`, `h2`, `http/1.1` or empty.
    pub alpn: &'static str,
    pub verdict: Verdict,
    /// A digest of the settings that the verdict depends on: the authorities and the depth. `None`
    /// if no client certificate was requested.
    pub rules: Option<[u8; 32]>,
    /// The client's own certificate, trusted or not.
    pub certificate: Option<Box<ClientCertificate>>,
}

/// The result of verifying the client's certificate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Verdict {
    /// The client sent no certificate, or none was requested.
    #[default]
    None,
    Success,
    /// The certificate is not trusted, with the reason.
    Failed(Box<str>),
}

/// A certificate sent by a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificate {
    /// Formatted as in RFC 2253.
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
    /// Encodes the certificate as PEM.
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
    fn pem_lines_have_64_characters() {
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
