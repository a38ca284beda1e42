//! Calls that file servers have always refused, each with the code that clients know, and calls
//! that this server does not have.

use cellar_rpc::IncomingCall;
use cellar_wire::{AbortCode, Procedure, rxafs};

use crate::abort_map::Refusal;
use crate::service::CallResult;

/// The answer of stock servers to CallBackRxConnAddr.
const NOT_BUILT_FOR_IT: AbortCode = AbortCode(1);

pub(super) async fn refuse(opcode: u32, call: &mut IncomingCall) -> CallResult {
    let read = Refusal::Call;
    match opcode {
        // For the DFS translator and for MR-AFS.
        rxafs::Lookup::OPCODE => {
            call.arguments::<rxafs::Lookup>().await.map_err(read)?;
            Err(Refusal::Invalid)
        }
        rxafs::DFSSymlink::OPCODE => {
            call.arguments::<rxafs::DFSSymlink>().await.map_err(read)?;
            Err(Refusal::Invalid)
        }
        rxafs::FsCmd::OPCODE => {
            call.arguments::<rxafs::FsCmd>().await.map_err(read)?;
            Err(Refusal::Invalid)
        }
        // Locations have long been the task of the volume location database.
        rxafs::NGetVolumeInfo::OPCODE => {
            call.arguments::<rxafs::NGetVolumeInfo>()
                .await
                .map_err(read)?;
            Err(Refusal::NoVolume)
        }
        rxafs::GetRootVolume::OPCODE => {
            call.arguments::<rxafs::GetRootVolume>()
                .await
                .map_err(read)?;
            Err(Refusal::NotSupported)
        }
        rxafs::CheckToken::OPCODE => {
            call.arguments::<rxafs::CheckToken>().await.map_err(read)?;
            Err(Refusal::ConnectionRefused)
        }
        rxafs::CallBackRxConnAddr::OPCODE => {
            call.arguments::<rxafs::CallBackRxConnAddr>()
                .await
                .map_err(read)?;
            Err(Refusal::Code(NOT_BUILT_FOR_IT))
        }
        _ => Err(Refusal::Code(AbortCode::RXGEN_OPCODE)),
    }
}
