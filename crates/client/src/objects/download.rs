//! Reads the bytes of a file, from its devices or through its file server.

use std::ops::Range;

use bytes::Bytes;
use cellar_objects::{ReadOptions, Reader};
use tokio::time::Instant;

use super::{DIRECT_MIN, Granted, is_plain};
use crate::client::Client;
use crate::error::{Error, Result};
use crate::fetch::Fetch;
use crate::path::Node;

/// A file being read.
pub struct Download<'a> {
    client: &'a Client,
    node: &'a Node,
    what: String,
    /// From the next byte to read to the end.
    range: Range<u64>,
    way: ByteSource<'a>,
}

enum ByteSource<'a> {
    /// The bytes come from the devices, with the time at which the right is renewed and the version
    /// of the file.
    Direct {
        reader: Box<Reader>,
        renew: Instant,
        version: u64,
    },
    /// The bytes come from the file server.
    Plain(Box<Fetch<'a>>),
}

impl Client {
    /// Reads the bytes of a file in `range`, up to its end. They come from its devices if the file
    /// is in objects, else from its file server. Errors say `what` was read.
    ///
    /// # Errors
    /// No server of the volume answers, or they refuse.
    pub async fn download<'a>(
        &'a self,
        node: &'a Node,
        what: impl Into<String>,
        range: Range<u64>,
    ) -> Result<Download<'a>> {
        let what = what.into();
        let end = range.end.min(node.status.length);
        let is_long = end.saturating_sub(range.start) >= DIRECT_MIN;
        if is_long && self.knows_objects(&node.volume).await? {
            match self.begin_fetch(node, &what, range.clone()).await {
                Ok((way, end)) => {
                    return Ok(Download {
                        client: self,
                        node,
                        what,
                        range: range.start..end,
                        way,
                    });
                }
                Err(failure) if is_plain(&failure) => {}
                Err(failure) => return Err(failure),
            }
        }
        let length = range.end.saturating_sub(range.start);
        let fetch = self.fetch(node, range.start, length).await?.named(&what);
        Ok(Download {
            client: self,
            node,
            what,
            range,
            way: ByteSource::Plain(Box::new(fetch)),
        })
    }

    /// Requests the places of the bytes. Also returns the end of the range, at most the end of the
    /// file.
    async fn begin_fetch(
        &self,
        node: &Node,
        what: &str,
        range: Range<u64>,
    ) -> Result<(ByteSource<'static>, u64)> {
        let Granted {
            set, renew, status, ..
        } = self
            .ask_where(&node.volume, node.fid, what, range.clone())
            .await?;
        let devices = self.devices(&node.volume.cell);
        let end = range.end.min(status.length).max(range.start);
        let reader = Reader::new(devices, set, range.start..end, ReadOptions::default());
        let reader = reader.map_err(|cause| Error::Objects {
            what: what.to_owned(),
            cause,
        })?;
        let way = ByteSource::Direct {
            reader: Box::new(reader),
            renew,
            version: status.data_version,
        };
        Ok((way, end))
    }
}

impl<'a> Download<'a> {
    /// A file in objects, read from its devices only.
    pub(super) async fn direct(
        client: &'a Client,
        node: &'a Node,
        what: &str,
        range: Range<u64>,
    ) -> Result<Self> {
        let (way, end) = client.begin_fetch(node, what, range.clone()).await?;
        Ok(Download {
            client,
            node,
            what: what.to_owned(),
            range: range.start..end,
            way,
        })
    }

    /// The next bytes from the devices; `None` if they come from the file server.
    pub(super) async fn read_device(&mut self) -> Option<cellar_objects::Result<Option<Bytes>>> {
        match &mut self.way {
            ByteSource::Direct { reader, .. } => Some(reader.next().await),
            ByteSource::Plain(_) => None,
        }
    }
}

impl Download<'_> {
    /// Whether the bytes come from the devices.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        matches!(self.way, ByteSource::Direct { .. })
    }

    /// The next bytes; `None` at the end.
    ///
    /// # Errors
    /// Neither the devices nor the file server deliver the rest; [`Error::Changed`].
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        while let ByteSource::Direct {
            reader,
            renew,
            version,
        } = &mut self.way
        {
            if self.range.is_empty() {
                return Ok(None);
            }
            let version = *version;
            if Instant::now() >= *renew {
                self.begin_again(version).await?;
                continue;
            }
            match reader.next().await {
                Ok(bytes) => {
                    self.range.start += bytes.as_ref().map_or(0, |bytes| bytes.len() as u64);
                    return Ok(bytes);
                }
                Err(cause) => {
                    tracing::info!(what = self.what, %cause, "continuing through the file server");
                    self.go_plain(version).await?;
                }
            }
        }
        let ByteSource::Plain(fetch) = &mut self.way else {
            return Ok(None);
        };
        let bytes = match fetch.next().await {
            Ok(bytes) => bytes,
            Err(failure) => {
                let (node, range) = (self.node, self.range.clone());
                let client = self.client;
                return Err(client.blame_device(node, &self.what, range, failure).await);
            }
        };
        self.range.start += bytes.as_ref().map_or(0, |bytes| bytes.len() as u64);
        Ok(bytes)
    }

    /// Renews the right to read.
    async fn begin_again(&mut self, before: u64) -> Result<()> {
        let (client, range) = (self.client, self.range.clone());
        match client.begin_fetch(self.node, &self.what, range).await {
            Ok((way, _)) => {
                if !matches!(way, ByteSource::Direct { version, .. } if version == before) {
                    return Err(self.changed());
                }
                self.way = way;
                Ok(())
            }
            Err(failure) if is_plain(&failure) => self.go_plain(before).await,
            Err(failure) => Err(failure),
        }
    }

    /// Continues from the file server, if it still has that version.
    async fn go_plain(&mut self, before: u64) -> Result<()> {
        let (client, node) = (self.client, self.node);
        let now = client.node(&node.volume, node.fid).await?;
        if now.status.data_version != before {
            return Err(self.changed());
        }
        let length = self.range.end - self.range.start;
        let fetch = client.fetch(node, self.range.start, length).await?;
        self.way = ByteSource::Plain(Box::new(fetch.named(&self.what)));
        Ok(())
    }

    fn changed(&self) -> Error {
        Error::Changed {
            what: self.what.clone(),
        }
    }
}
