//! A server of S3 in the process that misbehaves when a test says so.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use cellar_archive::{CredentialSource, Location, S3Location};
use futures_util::StreamExt;
use s3s::auth::SimpleAuth;
use s3s::dto::*;
use s3s::service::S3ServiceBuilder;
use s3s::{S3, S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

/// The way in which the server misbehaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It behaves.
    None,
    /// It says that bytes are stored, and stores none.
    Lies,
    /// It stores the first half only.
    Halves,
    /// It returns one other byte.
    OtherByte,
    /// It does not answer this operation.
    Stalls(&'static str),
    /// It stops in the middle of the bytes of a copy.
    StallsInBody,
    /// It closes the connection in the middle of the bytes of a copy, always.
    Breaks,
    /// It has no space.
    Full,
    /// It refuses this many requests because it is busy.
    Busy(usize),
    /// It refuses the credentials.
    Refuses,
    /// Each request is an internal error.
    Internal,
}

#[derive(Debug)]
pub(crate) struct Faulty {
    pub(crate) address: SocketAddr,
    pub(crate) fault: Mutex<Fault>,
    pub(crate) objects: Mutex<BTreeMap<String, Bytes>>,
    /// The parts of unfinished uploads.
    pub(crate) uploads: Mutex<HashMap<String, BTreeMap<i32, Bytes>>>,
    /// The operations so far.
    pub(crate) log: Mutex<Vec<&'static str>>,
}

const ACCESS: &str = "cell";
const SECRET: &str = "secret of the cell";
pub(crate) const BUCKET: &str = "archive";

impl Faulty {
    /// Starts the server. It ends with the runtime of the test.
    pub(crate) async fn start() -> Arc<Self> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let faulty = Arc::new(Self {
            address: listener.local_addr().unwrap(),
            fault: Mutex::new(Fault::None),
            objects: Mutex::default(),
            uploads: Mutex::default(),
            log: Mutex::default(),
        });
        let mut service = S3ServiceBuilder::new(Handle(Arc::clone(&faulty)));
        service.set_auth(SimpleAuth::from_single(ACCESS, SECRET));
        let service = service.build();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let io = hyper_util::rt::TokioIo::new(stream);
                let serving = hyper::server::conn::http1::Builder::new();
                tokio::spawn(serving.serve_connection(io, service.clone()));
            }
        });
        faulty
    }

    /// The location for a client, with the key in a file of `home`.
    pub(crate) fn location(&self, home: &tempfile::TempDir, secret: &str) -> Location {
        let file = home.path().join(format!("key-{}", secret.len()));
        let text = format!("[default]\naws_access_key_id={ACCESS}\naws_secret_access_key={secret}");
        cellar_private::replace(&file, text.as_bytes()).unwrap();
        Location::S3(S3Location {
            endpoint: format!("http://{}", self.address),
            bucket: BUCKET.to_owned(),
            prefix: "cells/one".to_owned(),
            region: "us-east-1".to_owned(),
            credentials: CredentialSource::File(file),
            path_style: true,
        })
    }

    pub(crate) fn good(&self, home: &tempfile::TempDir) -> Location {
        self.location(home, SECRET)
    }

    pub(crate) fn set(&self, fault: Fault) {
        *self.fault.lock().unwrap() = fault;
    }

    /// The times that an operation was asked for.
    pub(crate) fn count(&self, operation: &str) -> usize {
        self.log
            .lock()
            .unwrap()
            .iter()
            .filter(|name| **name == operation)
            .count()
    }

    /// Notes an operation, and misbehaves if the fault concerns all operations.
    async fn enter(&self, operation: &'static str, bucket: &str) -> S3Result<Fault> {
        self.log.lock().unwrap().push(operation);
        let fault = *self.fault.lock().unwrap();
        if bucket != BUCKET {
            return Err(S3Error::new(S3ErrorCode::NoSuchBucket));
        }
        match fault {
            Fault::Stalls(at) if at == operation => std::future::pending().await,
            Fault::Refuses => Err(S3Error::new(S3ErrorCode::InvalidAccessKeyId)),
            Fault::Internal => Err(S3Error::new(S3ErrorCode::InternalError)),
            Fault::Busy(times) if times > 0 => {
                self.set(Fault::Busy(times - 1));
                Err(S3Error::new(S3ErrorCode::SlowDown))
            }
            Fault::Full if operation.starts_with("put") => {
                let mut full = S3Error::new(S3ErrorCode::Custom("QuotaExceeded".into()));
                full.set_status_code(hyper::StatusCode::FORBIDDEN);
                full.set_message("the pool is full");
                Err(full)
            }
            fault => Ok(fault),
        }
    }

    fn store(&self, key: String, bytes: Bytes, create: bool, fault: Fault) -> S3Result<ETag> {
        let mut objects = self.objects.lock().unwrap();
        if create && objects.contains_key(&key) {
            return Err(S3Error::new(S3ErrorCode::PreconditionFailed));
        }
        match fault {
            Fault::Lies => {}
            Fault::Halves => drop(objects.insert(key, bytes.slice(..bytes.len() / 2))),
            _ => drop(objects.insert(key, bytes)),
        }
        Ok(ETag::Strong("tag".to_owned()))
    }

    fn find(&self, key: &str) -> S3Result<Bytes> {
        let found = self.objects.lock().unwrap().get(key).cloned();
        found.ok_or_else(|| S3Error::new(S3ErrorCode::NoSuchKey))
    }
}

/// The bytes of a request. A client that gave up sends only some of them.
async fn collected(body: Option<StreamingBlob>) -> S3Result<Bytes> {
    let mut bytes = Vec::new();
    if let Some(mut body) = body {
        while let Some(piece) = body.next().await {
            let piece = piece.map_err(|_| S3Error::new(S3ErrorCode::IncompleteBody))?;
            bytes.extend_from_slice(&piece);
        }
    }
    Ok(bytes.into())
}

fn time() -> Timestamp {
    Timestamp::from(std::time::SystemTime::UNIX_EPOCH)
}

struct Handle(Arc<Faulty>);

#[async_trait::async_trait]
impl S3 for Handle {
    async fn put_object(
        &self,
        request: S3Request<PutObjectInput>,
    ) -> S3Result<S3Response<PutObjectOutput>> {
        let input = request.input;
        let fault = self.0.enter("put", &input.bucket).await?;
        let bytes = collected(input.body).await?;
        let tag = self
            .0
            .store(input.key, bytes, input.if_none_match.is_some(), fault)?;
        Ok(S3Response::new(PutObjectOutput {
            e_tag: Some(tag),
            ..PutObjectOutput::default()
        }))
    }

    async fn get_object(
        &self,
        request: S3Request<GetObjectInput>,
    ) -> S3Result<S3Response<GetObjectOutput>> {
        let input = request.input;
        let fault = self.0.enter("get", &input.bucket).await?;
        let whole = self.0.find(&input.key)?;
        let length = whole.len() as u64;
        let range = match input.range {
            Some(range) => range.check(length)?,
            None => 0..length,
        };
        let is_copy = input.key.contains("/objects/");
        let mut bytes = whole
            .slice(range.start as usize..range.end as usize)
            .to_vec();
        if fault == Fault::OtherByte && is_copy {
            bytes[0] ^= 1;
        }
        let size = bytes.len();
        let half = Bytes::from(bytes).split_to(match fault {
            Fault::StallsInBody | Fault::Breaks if is_copy => size / 2,
            _ => size,
        });
        let first = futures_util::stream::iter([Ok::<_, std::io::Error>(half)]);
        let body = match fault {
            Fault::StallsInBody if is_copy => {
                StreamingBlob::wrap(first.chain(futures_util::stream::pending()))
            }
            Fault::Breaks if is_copy => {
                let error = Err(std::io::Error::other("the server breaks the connection"));
                StreamingBlob::wrap(first.chain(futures_util::stream::iter([error])))
            }
            _ => StreamingBlob::wrap(first),
        };
        let content_range = input.range.is_some().then(|| {
            format!(
                "bytes {}-{}/{length}",
                range.start,
                range.end.saturating_sub(1)
            )
        });
        Ok(S3Response::new(GetObjectOutput {
            body: Some(body),
            content_length: Some(size as i64),
            content_range,
            e_tag: Some(ETag::Strong("tag".to_owned())),
            last_modified: Some(time()),
            ..GetObjectOutput::default()
        }))
    }

    async fn head_object(
        &self,
        request: S3Request<HeadObjectInput>,
    ) -> S3Result<S3Response<HeadObjectOutput>> {
        let input = request.input;
        self.0.enter("head", &input.bucket).await?;
        let bytes = self.0.find(&input.key)?;
        Ok(S3Response::new(HeadObjectOutput {
            content_length: Some(bytes.len() as i64),
            e_tag: Some(ETag::Strong("tag".to_owned())),
            last_modified: Some(time()),
            ..HeadObjectOutput::default()
        }))
    }

    async fn delete_object(
        &self,
        request: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        let input = request.input;
        self.0.enter("delete", &input.bucket).await?;
        self.0.objects.lock().unwrap().remove(&input.key);
        Ok(S3Response::new(DeleteObjectOutput::default()))
    }

    async fn list_objects_v2(
        &self,
        request: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        let input = request.input;
        self.0.enter("list", &input.bucket).await?;
        let prefix = input.prefix.unwrap_or_default();
        let objects = self.0.objects.lock().unwrap();
        let found = objects.iter().filter(|(key, _)| key.starts_with(&prefix));
        let contents = found.map(|(key, bytes)| Object {
            key: Some(key.clone()),
            size: Some(bytes.len() as i64),
            last_modified: Some(time()),
            e_tag: Some(ETag::Strong("tag".to_owned())),
            ..Object::default()
        });
        Ok(S3Response::new(ListObjectsV2Output {
            contents: Some(contents.collect()),
            is_truncated: Some(false),
            ..ListObjectsV2Output::default()
        }))
    }

    async fn create_multipart_upload(
        &self,
        request: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        let input = request.input;
        self.0.enter("create", &input.bucket).await?;
        let mut uploads = self.0.uploads.lock().unwrap();
        let id = format!("{}-{}", uploads.len(), self.0.log.lock().unwrap().len());
        uploads.insert(id.clone(), BTreeMap::new());
        Ok(S3Response::new(CreateMultipartUploadOutput {
            upload_id: Some(id),
            ..CreateMultipartUploadOutput::default()
        }))
    }

    async fn upload_part(
        &self,
        request: S3Request<UploadPartInput>,
    ) -> S3Result<S3Response<UploadPartOutput>> {
        let input = request.input;
        self.0.enter("put part", &input.bucket).await?;
        let bytes = collected(input.body).await?;
        let mut uploads = self.0.uploads.lock().unwrap();
        let parts = uploads.get_mut(&input.upload_id);
        let parts = parts.ok_or_else(|| S3Error::new(S3ErrorCode::NoSuchUpload))?;
        parts.insert(input.part_number, bytes);
        Ok(S3Response::new(UploadPartOutput {
            e_tag: Some(ETag::Strong(format!("part{}", input.part_number))),
            ..UploadPartOutput::default()
        }))
    }

    async fn complete_multipart_upload(
        &self,
        request: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        let input = request.input;
        let fault = self.0.enter("complete", &input.bucket).await?;
        let create = input.if_none_match.is_some();
        let parts = self
            .0
            .uploads
            .lock()
            .unwrap()
            .get(&input.upload_id)
            .cloned();
        let parts = parts.ok_or_else(|| S3Error::new(S3ErrorCode::NoSuchUpload))?;
        let last = parts.len();
        for (n, part) in (1..).zip(parts.values()) {
            if n < last && part.len() < 5 << 20 {
                return Err(S3Error::new(S3ErrorCode::EntityTooSmall));
            }
        }
        let bytes = parts.values().cloned().collect::<Vec<_>>().concat();
        let tag = self.0.store(input.key, bytes.into(), create, fault)?;
        self.0.uploads.lock().unwrap().remove(&input.upload_id);
        Ok(S3Response::new(CompleteMultipartUploadOutput {
            e_tag: Some(tag),
            ..CompleteMultipartUploadOutput::default()
        }))
    }

    async fn abort_multipart_upload(
        &self,
        request: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        self.0.log.lock().unwrap().push("abort");
        self.0
            .uploads
            .lock()
            .unwrap()
            .remove(&request.input.upload_id);
        Ok(S3Response::new(AbortMultipartUploadOutput::default()))
    }
}
