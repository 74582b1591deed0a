//! A gRPC server with one unary method, which answers each message with itself.

use std::net::SocketAddr;

use anyhow::Result;
use bytes::{Bytes, BytesMut};
use h2::RecvStream;
use h2::server::{self, SendResponse};
use http::{HeaderMap, HeaderValue, Request, Response};
use tokio::net::TcpStream;

use super::origin::Origin;
use crate::load::GRPC_PATH;
use crate::machine::Cores;

/// # Errors
/// The address is not available.
pub fn start(address: SocketAddr, cores: &Cores) -> Result<Origin> {
    // The gateway reports failed connections.
    Origin::start_tasks(address, cores, |socket| {
        tokio::spawn(serve(socket));
    })
}

async fn serve(socket: TcpStream) -> Result<()> {
    // Gateways reset streams and close connections when their clients do, at the end of each pass:
    // not a reason to close the others.
    let mut connection = server::Builder::new()
        .max_concurrent_streams(10_000)
        .max_pending_accept_reset_streams(100_000)
        .max_local_error_reset_streams(None)
        .data_frame_budget(usize::MAX)
        .initial_window_size(1 << 20)
        .initial_connection_window_size(1 << 24)
        .handshake::<_, Bytes>(socket)
        .await?;
    while let Some(call) = connection.accept().await {
        let (request, respond) = call?;
        tokio::spawn(answer(request, respond));
    }
    Ok(())
}

async fn answer(request: Request<RecvStream>, mut respond: SendResponse<Bytes>) -> Result<()> {
    let right = request.method() == "POST"
        && request.uri().path() == GRPC_PATH
        && request.headers().get("content-type").is_some_and(|kind| kind == "application/grpc");
    if !right {
        respond.send_response(Response::builder().status(404).body(())?, true)?;
        return Ok(());
    }
    let mut body = request.into_body();
    let mut message = BytesMut::new();
    while let Some(data) = body.data().await.transpose()? {
        body.flow_control().release_capacity(data.len())?;
        message.extend_from_slice(&data);
    }
    let head = Response::builder().header("content-type", "application/grpc").body(())?;
    let mut stream = respond.send_response(head, false)?;
    stream.send_data(message.freeze(), false)?;
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    stream.send_trailers(trailers)?;
    Ok(())
}
