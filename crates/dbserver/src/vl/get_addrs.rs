//! GetAddrs, GetAddrsU: the addresses of file servers.

use cellar_wire::vl::{
    GetAddrs, GetAddrsReply, GetAddrsU, GetAddrsUReply, VLADDR_INDEX, VLADDR_IPADDR, VLADDR_UUID,
    VlCallBack,
};
use cellar_wire::{AbortCode, List};

use super::Vl;
use super::limits::SERVERS_MAX;
use super::server::Server;
use crate::{Answer, Error, Identity};

/// The number of servers with a UUID in a block of OpenAFS's database. The reply names servers by
/// block and index.
const BLOCK_SERVERS: usize = 63;

impl Answer<Vl> for GetAddrs {
    const BLOCKS: bool = false;

    fn answer(self, vl: &Vl, _: Identity) -> Result<GetAddrsReply, Error> {
        let model = vl.replica.read();
        // A registered server is a reference, 255.block.0.index. GetAddrsU returns its addresses.
        let word = |(number, server): (usize, &Server)| {
            let (block, place) = (number / BLOCK_SERVERS, number % BLOCK_SERVERS + 1);
            match server.is_registered() {
                true => 0xff00_0000 | (block as u32) << 16 | place as u32,
                false => server.address(),
            }
        };
        let words: Vec<u32> = model.servers().map(word).collect();
        Ok(GetAddrsReply {
            spare3: VlCallBack::default(),
            nentries: words.len() as i32,
            blkaddr: List::from_iter_cut(words),
        })
    }
}

impl Answer<Vl> for GetAddrsU {
    const BLOCKS: bool = false;

    fn answer(self, vl: &Vl, _: Identity) -> Result<GetAddrsUReply, Error> {
        let model = vl.replica.read();
        let asked = &self.attributes;
        let mut registered = model
            .servers()
            .map(|(_, s)| s)
            .filter(|s| s.is_registered());
        let server = match asked.mask & (VLADDR_IPADDR | VLADDR_INDEX | VLADDR_UUID) {
            VLADDR_IPADDR => registered.find(|s| s.addresses.contains(&asked.ipaddr)),
            VLADDR_UUID => registered.find(|s| s.uuid == asked.uuid),
            VLADDR_INDEX => match usize::try_from(asked.index) {
                Ok(index @ 1..SERVERS_MAX) => model
                    .server(index - 1)
                    .filter(|server| server.is_registered()),
                _ => return Err(AbortCode::VL_INDEXERANGE.into()),
            },
            _ => return Err(AbortCode::VL_BADMASK.into()),
        };
        let server = server.ok_or(AbortCode::VL_NOENT)?;
        Ok(GetAddrsUReply {
            uuid: server.uuid,
            uniquifier: server.uniquifier as i32,
            nentries: server.addresses.len() as i32,
            blkaddrs: List::from_iter_cut(server.addresses.iter().copied()),
        })
    }
}
