//! HTTP/3: single requests for probes, and a closed loop with many concurrent requests. The client
//! (quinn and h3, one thread) needs more time per request than a gateway, so the client limits the
//! rate; the gateway's cost per request is not affected by that.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::{Buf, Bytes};
use h3::client::SendRequest;
use h3_quinn::OpenStreams;
use quinn::crypto::rustls::QuicClientConfig;
use tokio::task::LocalSet;

use super::response::Response;
use super::{Load, Tally, Target};
use crate::certificate;

/// One connection, closed when this is dropped.
pub struct Client {
    requests: SendRequest<OpenStreams, Bytes>,
    target: Target,
    _endpoint: quinn::Endpoint,
}

impl Client {
    /// # Errors
    /// The connection fails.
    pub async fn connect(target: &Target) -> Result<Self> {
        let tls = certificate::Client { alpn: Some(b"h3"), hybrid: target.hybrid, resume: false }.config()?;
        let config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?));
        let mut endpoint = quinn::Endpoint::client(([127, 0, 0, 1], 0).into())?;
        endpoint.set_default_client_config(config);
        let connection = endpoint.connect(target.address, certificate::NAME)?.await?;
        let (mut driver, requests) =
            h3::client::builder().send_grease(false).build(h3_quinn::Connection::new(connection)).await?;
        tokio::spawn(async move { poll_fn(|context| driver.poll_close(context)).await });
        Ok(Self { requests, target: target.clone(), _endpoint: endpoint })
    }

    /// Requests path number `index`.
    ///
    /// # Errors
    /// The connection fails.
    pub async fn ask(&self, index: usize) -> Result<Response> {
        let mut stream = self.requests.clone().send_request(self.target.request_head(index)?).await?;
        // A gateway that has responded already may have stopped reading, which is not an error.
        let _ = stream.finish().await;
        let status = stream.recv_response().await.context("no answer")?.status().as_u16();
        let mut body = 0;
        while let Some(data) = stream.recv_data().await? {
            body += data.remaining() as u64;
        }
        Ok(Response { status, body })
    }
}

/// The load of `Driver::Http3`.
pub async fn load(connections: usize, streams: usize, target: Target, duration: Duration) -> Result<Load> {
    let mut clients = Vec::new();
    for _ in 0..connections {
        clients.push(Rc::new(Client::connect(&target).await?));
    }
    let started = Instant::now();
    let deadline = started + duration;
    let tasks = LocalSet::new();
    let mut parts = Vec::new();
    for index in 0..connections * streams {
        let client = clients[index % connections].clone();
        parts.push(tasks.spawn_local(async move { until(&client, deadline, index).await }));
    }
    let mut tally = Tally::new()?;
    tasks
        .run_until(async {
            for part in parts {
                tally.add(part.await??)?;
            }
            anyhow::Ok(())
        })
        .await?;
    Ok(tally.load(started.elapsed()))
}

/// Sends requests in a loop; stops after a failure, since the connection is closed then.
async fn until(client: &Client, deadline: Instant, first: usize) -> Result<Tally> {
    let mut tally = Tally::new()?;
    let mut index = first;
    while Instant::now() < deadline {
        let asked = Instant::now();
        let answer = client.ask(index).await.and_then(|answer| {
            ensure!(answer.status == 200 && answer.body == client.target.body, "answered {answer:?}");
            Ok(answer)
        });
        match answer {
            Ok(_) => tally.count(asked.elapsed()),
            Err(problem) => {
                tally.fail(&problem);
                break;
            }
        }
        index += 1;
    }
    Ok(tally)
}
