//! A disk whose power fails at the n-th operation. Tests of other crates use it too.
//!
//! The disk keeps a durable image and the operations since its last sync. Cutting the power applies
//! any subset of those, some of them only up to a sector in their middle.

use std::io;
use std::sync::{Arc, Mutex};

use cellar_celldb::StorageBackend;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const SECTOR: usize = 512;

#[derive(Clone, Debug)]
enum Operation {
    Write(u64, Vec<u8>),
    SetLength(u64),
}

impl Operation {
    fn apply(&self, image: &mut Vec<u8>) {
        match self {
            Self::Write(offset, data) => {
                let end = *offset as usize + data.len();
                if image.len() < end {
                    image.resize(end, 0);
                }
                image[*offset as usize..end].copy_from_slice(data);
            }
            Self::SetLength(length) => image.resize(*length as usize, 0),
        }
    }
}

#[derive(Debug, Default)]
struct Platter {
    durable: Vec<u8>,
    current: Vec<u8>,
    unsynced: Vec<Operation>,
    operations: u64,
    fails_at: Option<u64>,
}

impl Platter {
    fn step(&mut self) -> io::Result<()> {
        self.operations += 1;
        match self.fails_at {
            Some(n) if self.operations >= n => Err(io::Error::other("the power is gone")),
            _ => Ok(()),
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct SimulatedDisk(Arc<Mutex<Platter>>);

impl SimulatedDisk {
    pub(crate) fn of(image: Vec<u8>, fails_at: Option<u64>) -> Self {
        let platter = Platter {
            durable: image.clone(),
            current: image,
            fails_at,
            ..Platter::default()
        };
        Self(Arc::new(Mutex::new(platter)))
    }

    pub(crate) fn operations(&self) -> u64 {
        self.0.lock().unwrap().operations
    }

    /// The disk as a machine finds it after a power cut. `fate` 0: nothing unsynced arrived; 1:
    /// everything; otherwise the seed of which operations did, and how much of each.
    pub(crate) fn after_power_loss(&self, fate: u64) -> Vec<u8> {
        let platter = self.0.lock().unwrap();
        let mut image = platter.durable.clone();
        let mut random = StdRng::seed_from_u64(fate);
        for operation in &platter.unsynced {
            match (fate, operation) {
                (0, _) => {}
                (1, _) => operation.apply(&mut image),
                (_, Operation::Write(offset, data)) => {
                    let sectors = data.len() / SECTOR;
                    match random.random_range(0..4) {
                        0 => {}
                        1 if sectors > 1 => {
                            let kept = random.random_range(1..sectors) * SECTOR;
                            Operation::Write(*offset, data[..kept].to_vec()).apply(&mut image);
                        }
                        _ => operation.apply(&mut image),
                    }
                }
                (_, Operation::SetLength(_)) => operation.apply(&mut image),
            }
        }
        image
    }
}

impl StorageBackend for SimulatedDisk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().unwrap().current.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let platter = self.0.lock().unwrap();
        let from = offset as usize;
        let bytes = platter.current.get(from..from + out.len());
        out.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.apply(Operation::SetLength(len))
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut platter = self.0.lock().unwrap();
        platter.step()?;
        platter.durable = platter.current.clone();
        platter.unsynced.clear();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.apply(Operation::Write(offset, data.to_vec()))
    }
}

impl SimulatedDisk {
    fn apply(&self, operation: Operation) -> io::Result<()> {
        let mut platter = self.0.lock().unwrap();
        platter.step()?;
        operation.apply(&mut platter.current);
        platter.unsynced.push(operation);
        Ok(())
    }
}
