//! The kernel's requests about open files: opens, reads, writes and stores.

use std::fs::File;

use fuser::{
    Errno, FileHandle, Generation, INodeNo, LockOwner, ReplyCreate, ReplyData, ReplyEmpty,
    ReplyOpen, ReplyWrite, Request,
};

use super::Filesystem;

impl Filesystem {
    /// Opens a file. `flags`: those of open(2), and whether set-id bits are removed.
    pub(super) fn open_file(
        &self,
        request: &Request,
        number: INodeNo,
        flags: (i32, bool),
        reply: ReplyOpen,
    ) {
        let (requests, uid) = (self.requests.clone(), request.uid());
        let caller = self.caller(request);
        self.run(async move {
            let register = |file: &File| reply.open_backing(file);
            let open = requests.open(uid, number, flags, register);
            let opened = requests.within(&caller, open).await;
            match opened {
                Ok(open) => {
                    let (handle, flags) = (FileHandle(open.handle), open.flags());
                    match &open.backing {
                        Some(backing) => reply.opened_passthrough(handle, flags, &backing.id),
                        None => reply.opened(handle, flags),
                    }
                }
                Err(errno) => reply.error(errno),
            }
        });
    }

    /// Creates a file and opens it.
    pub(super) fn create_file(
        &self,
        request: &Request,
        (parent, name): (INodeNo, Vec<u8>),
        mode: u32,
        flags: (i32, bool),
        reply: ReplyCreate,
    ) {
        let (requests, uid) = (self.requests.clone(), request.uid());
        let caller = self.caller(request);
        self.run(async move {
            let created = requests.create(uid, parent, &name, mode, flags);
            match requests.within(&caller, created).await {
                Ok((entry, open)) => {
                    reply.created(
                        &entry.entry_time.min(entry.attr_time),
                        &entry.attr,
                        Generation(entry.generation),
                        FileHandle(open.handle),
                        open.flags(),
                    );
                    requests.entered(&entry);
                }
                Err(errno) => reply.error(errno),
            }
        });
    }

    /// Opens a directory.
    pub(super) fn open_dir(&self, request: &Request, number: INodeNo, reply: ReplyOpen) {
        let (requests, uid) = (self.requests.clone(), request.uid());
        let caller = self.caller(request);
        self.run(async move {
            match requests
                .within(&caller, requests.open_dir(uid, number))
                .await
            {
                Ok(open) => reply.opened(FileHandle(open.handle), open.flags()),
                Err(errno) => reply.error(errno),
            }
        });
    }

    /// Answers with bytes of a file.
    pub(super) fn read_bytes(
        &self,
        request: &Request,
        handle: FileHandle,
        (offset, size): (u64, u32),
        reply: ReplyData,
    ) {
        let (requests, caller) = (self.requests.clone(), self.caller(request));
        self.run(async move {
            match requests
                .within(&caller, requests.read(handle.0, offset, size))
                .await
            {
                Ok(bytes) => reply.data(&bytes),
                Err(errno) => reply.error(errno),
            }
        });
    }

    /// Writes bytes. `appends`: at the end of the file. `kills`: set-id bits are removed.
    pub(super) fn write_bytes(
        &self,
        request: &Request,
        handle: FileHandle,
        (offset, data): (u64, Vec<u8>),
        (appends, kills): (bool, bool),
        reply: ReplyWrite,
    ) {
        let (requests, caller) = (self.requests.clone(), self.caller(request));
        self.run(async move {
            // No time limit: a write may wait until bytes are stored, which makes progress.
            let write = async {
                if kills {
                    requests.kill_set_id_of(handle.0).await?;
                }
                match appends {
                    true => requests.append(handle.0, offset, &data).await,
                    false => requests.write(handle.0, offset, &data).await,
                }
            };
            let let_go = |reply: ReplyWrite| reply.error(Errno::EINTR);
            match caller.outlived_by(write, reply, let_go).await {
                None => {}
                Some((reply, Ok(count))) => reply.written(count),
                Some((reply, Err(errno))) => reply.error(errno),
            }
        });
    }

    /// Stores a file. If `owner` is given, a descriptor is closed, and the process loses its
    /// fcntl(2) locks on the file.
    pub(super) fn store(
        &self,
        request: &Request,
        handle: FileHandle,
        durable: bool,
        owner: Option<LockOwner>,
        reply: ReplyEmpty,
    ) {
        let (requests, caller) = (self.requests.clone(), self.caller(request));
        let caller = match owner {
            Some(_) => caller.closing(),
            None => caller,
        };
        self.run(async move {
            // No time limit: a large store takes long, and a silent server ends it.
            let store = async {
                let stored = requests.store(handle.0, durable).await;
                if let Some(owner) = owner {
                    requests.descriptor_closed(handle.0, owner.0).await;
                }
                stored
            };
            let let_go = |reply: ReplyEmpty| reply.error(Errno::EINTR);
            match caller.outlived_by(store, reply, let_go).await {
                None => {}
                Some((reply, Ok(()))) => reply.ok(),
                Some((reply, Err(errno))) => reply.error(errno),
            }
        });
    }
}
