//! GetVolumeInfo (148): the location of a volume, in the form of the oldest clients. The answer
//! comes from the volume location database.

use cellar_rpc::IncomingCall;
use cellar_wire::ids::VolumeId;
use cellar_wire::rxafs::{GetVolumeInfo, GetVolumeInfoReply, VolumeInfo};
use cellar_wire::serve::Handle;
use cellar_wire::vl::{
    BACKVOL, ROVOL, RWVOL, VLF_BACKEXISTS, VLF_ROEXISTS, VLF_RWEXISTS, VLSF_ROVOL, VLSF_RWVOL,
    VldbEntry, VolumeNameArgument,
};

use super::FileService;
use super::names::text;
use crate::abort_map::Refusal;

/// The value in place of a fifth id. Only servers that know the database put it there; it tells
/// clients to ask the database instead.
const ASK_THE_DATABASE: u32 = 0xabcd_9999;

impl Handle<GetVolumeInfo, IncomingCall> for FileService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: GetVolumeInfo,
    ) -> Result<GetVolumeInfoReply, Refusal> {
        let services = &self.services;
        let GetVolumeInfo { volume_name } = arguments;
        let session = services.sessions.session(call).await?;
        let name = text(volume_name.as_bytes())?;
        let asked = VolumeNameArgument::try_from(name);
        let asked = asked.map_err(|_| Refusal::Code(cellar_wire::AbortCode::VL_BADNAME))?;
        let entry = self.locations.entry(&asked, session.now.0).await;
        let entry = entry.map_err(Refusal::Code)?;
        let info = volume_info(name, &entry).ok_or(Refusal::Invalid)?;
        Ok(GetVolumeInfoReply { info })
    }
}

/// The volume of an entry that a name selects, with the servers that have it. `None` if the entry
/// has no such volume.
fn volume_info(name: &[u8], entry: &VldbEntry) -> Option<VolumeInfo> {
    let [rw, ro, backup] = entry.volume_ids;
    let by_number = std::str::from_utf8(name).ok()?.parse::<u32>().ok();
    let volume = match by_number {
        Some(number) if number != 0 => VolumeId(number),
        _ if name.ends_with(b".backup") => backup,
        _ if name.ends_with(b".readonly") => ro,
        _ => rw,
    };
    // A backup volume is on the same site as its read-write volume.
    let kinds = [
        (VLF_RWEXISTS, rw, RWVOL, VLSF_RWVOL),
        (VLF_ROEXISTS, ro, ROVOL, VLSF_ROVOL),
        (VLF_BACKEXISTS, backup, BACKVOL, VLSF_RWVOL),
    ];
    let exists = |flag: u32| entry.flags & flag != 0;
    let &(_, _, volume_type, site_flag) = kinds
        .iter()
        .find(|(flag, id, ..)| exists(*flag) && *id == volume)?;
    let mut info = VolumeInfo {
        volume,
        volume_type,
        ..VolumeInfo::default()
    };
    for (place, (flag, id, ..)) in kinds.into_iter().enumerate() {
        if exists(flag) {
            info.type_ids[place] = id.0;
        }
    }
    info.type_ids[4] = ASK_THE_DATABASE;
    let sites = entry.sites.iter();
    let servers = sites
        .filter(|site| site.flags & site_flag != 0)
        .map(|site| site.server);
    for (place, server) in info.servers.iter_mut().zip(servers) {
        *place = server;
        info.server_count += 1;
    }
    Some(info)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellar_wire::List;
    use cellar_wire::vl::Site;

    #[test]
    fn a_name_means_one_volume_of_the_entry_and_its_servers() {
        let site = |server, flags| Site {
            server,
            partition: 0,
            flags,
        };
        let entry = VldbEntry {
            sites: List::from_iter_cut([
                site(1, VLSF_RWVOL),
                site(1, VLSF_ROVOL),
                site(2, VLSF_ROVOL),
            ]),
            volume_ids: [10, 11, 12].map(VolumeId),
            flags: VLF_RWEXISTS | VLF_ROEXISTS,
            ..VldbEntry::default()
        };
        let found = |name: &[u8]| {
            let info = volume_info(name, &entry)?;
            let servers = info.servers[..info.server_count as usize].to_vec();
            Some((info.volume.0, info.volume_type, servers))
        };
        assert_eq!(found(b"root.cell"), Some((10, RWVOL, vec![1])));
        assert_eq!(found(b"root.cell.readonly"), Some((11, ROVOL, vec![1, 2])));
        assert_eq!(found(b"11"), Some((11, ROVOL, vec![1, 2])));
        assert_eq!(found(b"root.cell.backup"), None, "there is none");
        assert_eq!(found(b"99"), None);
        let info = volume_info(b"root.cell", &entry).unwrap();
        assert_eq!(info.type_ids, [10, 11, 0, 0, ASK_THE_DATABASE]);
    }
}
