//! Our own upstreams, for responses that Debian's nginx cannot send: threads of this program on the
//! load's cores.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, Result};

use crate::machine::{Cores, pin_this_thread};

/// A listener whose connections are served until this is dropped.
pub struct Origin {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Origin {
    /// Calls `serve` on a pinned thread for each connection.
    ///
    /// # Errors
    /// The address is not available.
    pub fn start(
        address: SocketAddr,
        cores: &Cores,
        serve: impl Fn(TcpStream) + Send + 'static,
    ) -> Result<Self> {
        Self::listen(address, cores, move |listener, stop| {
            for socket in listener.incoming() {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                if let Ok(socket) = socket {
                    serve(socket);
                }
            }
        })
    }

    /// Calls `serve` in a runtime of one pinned thread, to start a task for each connection.
    ///
    /// # Errors
    /// The address is not available.
    pub fn start_tasks(
        address: SocketAddr,
        cores: &Cores,
        serve: impl Fn(tokio::net::TcpStream) + Send + 'static,
    ) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Self::listen(address, cores, move |listener, stop| {
            runtime.block_on(async {
                if listener.set_nonblocking(true).is_err() {
                    return;
                }
                let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
                while let Ok((socket, _)) = listener.accept().await {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let _ = socket.set_nodelay(true);
                    serve(socket);
                }
            });
        })
    }

    fn listen(
        address: SocketAddr,
        cores: &Cores,
        run: impl FnOnce(TcpListener, &AtomicBool) + Send + 'static,
    ) -> Result<Self> {
        let listener = TcpListener::bind(address).with_context(|| format!("cannot listen on {address}"))?;
        let address = listener.local_addr()?;
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, cores) = (stop.clone(), cores.clone());
        let thread = std::thread::spawn(move || {
            // Pinning is optional: without it, the server is only slower.
            let _ = pin_this_thread(&cores);
            run(listener, &stopped);
        });
        Ok(Self { address, stop, thread: Some(thread) })
    }

    #[cfg(test)]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // The thread waits for a connection.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
