//! Single HTTP/2 requests, including gRPC calls: for probes and for idle connections.

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use h2::client::SendRequest;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::response::Response;
use super::{Call, Front, Target, grpc_message};
use crate::certificate;

/// One connection, kept open while this lives.
pub struct Client {
    requests: SendRequest<Bytes>,
    target: Target,
}

impl Client {
    /// # Errors
    /// The connection fails, or TLS does not negotiate HTTP/2.
    pub async fn connect(target: &Target) -> Result<Self> {
        let socket = TcpStream::connect(target.address).await?;
        socket.set_nodelay(true)?;
        let requests = if target.front == Front::H2 {
            let tls = tokio_rustls::TlsConnector::from(certificate::probe(true)?);
            let stream = tls.connect(certificate::server_name()?, socket).await?;
            ensure!(stream.get_ref().1.alpn_protocol() == Some(b"h2"), "TLS did not agree on HTTP/2");
            open(stream).await?
        } else {
            open(socket).await?
        };
        Ok(Self { requests, target: target.clone() })
    }

    /// Requests path number `index`. A gRPC call must end with `grpc-status: 0` in trailers.
    ///
    /// # Errors
    /// The connection fails or the response is invalid.
    pub async fn ask(&mut self, index: usize) -> Result<Response> {
        let grpc = self.target.call == Call::Grpc;
        let mut requests = self.requests.clone().ready().await?;
        let (answer, mut body) = requests.send_request(self.target.request_head(index)?, !grpc)?;
        if grpc {
            body.send_data(grpc_message().into(), true)?;
        }
        let answer = answer.await.context("no answer")?;
        let status = answer.status().as_u16();
        let mut stream = answer.into_body();
        let mut length = 0;
        while let Some(data) = stream.data().await.transpose()? {
            length += data.len() as u64;
            stream.flow_control().release_capacity(data.len())?;
        }
        let trailers = stream.trailers().await?;
        if grpc {
            let code = trailers.as_ref().and_then(|trailers| trailers.get("grpc-status"));
            if code.is_none_or(|code| code != "0") {
                bail!("the call ended with {status} and the trailers {trailers:?}");
            }
        }
        Ok(Response { status, body: length })
    }
}

async fn open<S>(stream: S) -> Result<SendRequest<Bytes>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (requests, connection) = h2::client::handshake(stream).await?;
    // Its end is reported by the requests on it.
    tokio::spawn(connection);
    Ok(requests)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::wait;
    use crate::machine::Cores;
    use crate::upstream::grpc;

    #[test]
    fn a_call_ends_with_its_trailers() {
        let origin = grpc::start(([127, 0, 0, 1], 0).into(), &Cores(vec![0])).unwrap();
        let target = Target {
            call: Call::Grpc,
            front: Front::H2c,
            ..Target::plain(origin.address(), grpc_message().len() as u64)
        };
        let answer = wait(async { Client::connect(&target).await?.ask(0).await }).unwrap();
        assert_eq!(answer, Response { status: 200, body: 105 });
        let without = Target { call: Call::Get, ..target };
        let answer = wait(async { Client::connect(&without).await?.ask(0).await }).unwrap();
        assert_eq!(answer.status, 404);
    }
}
