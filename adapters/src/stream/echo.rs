//! The client of an engine that answers each line with a line.

use std::io;
use std::time::Duration;

use futures_util::future::{Either, select};
use sdk::World;
use sdk::connection::{Connect, Server};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};

use crate::stream::Stream;

pub struct Echo {
    pub server: Server,
    pub timeout: Duration,
    pub max_answer: u64,
}

impl Echo {
    pub async fn ask(&self, world: &dyn World, line: &str) -> io::Result<String> {
        let to = Connect { server: self.server.clone(), pool: "echo".into(), timeout: self.timeout };
        let mut stream = BufReader::new(Stream::new(world.connect(to).await.map_err(io::Error::other)?));
        let asking = Box::pin(async move {
            stream.write_all(format!("{line}\n").as_bytes()).await?;
            stream.flush().await?;
            let mut answer = String::new();
            (&mut stream).take(self.max_answer).read_line(&mut answer).await?;
            if !answer.ends_with('\n') {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            stream.into_inner().keep(Duration::from_secs(60));
            Ok(answer)
        });
        match select(asking, world.sleep(self.timeout)).await {
            Either::Left((answer, _)) => answer,
            Either::Right(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}
