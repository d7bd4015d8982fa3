//! The state that `vlane serve` hands to its successor, and its transport.
//!
//! The new program is executed in place of the old one: the same process, with only its
//! descriptors. They arrive in messages of a socket pair, of which the new program finds one end as
//! its standard input. So no other descriptor has to survive the execution: it closes all of them.
//! If it fails, the old state is unchanged. The first descriptor is a file in memory with the
//! [`Handed`] in JSON.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Read, Seek, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use anyhow::{Context, Result, bail, ensure};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use serde::{Deserialize, Serialize};
use vlane_engine::file::HandedFiles;
use vlane_policy::throttle::Limits;
use vlane_server::{Arrived, Descriptors, HANDOVER_FORMAT, HandedServer};

/// Set to the process's own number for the program that takes over. A process that finds another
/// one there has only inherited it.
pub(super) const VARIABLE: &str = "VLANE_TAKES_OVER";
/// Descriptors in a message; Linux allows 253.
const AT_ONCE: usize = 200;

/// The form of a [`Handed`]; what [`HANDOVER_FORMAT`] is for what is in it. Both together are one
/// number to the outside.
const OWN_FORMAT: u32 = 1;

/// The number that both programs must have in common.
pub(super) const FORMAT: u32 = OWN_FORMAT * 1000 + HANDOVER_FORMAT;

pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The open files of the image.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HandedImage {
    image: usize,
    cached: Option<usize>,
    witness: Option<usize>,
    sectors: u64,
}

/// Everything.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Handed {
    format: u32,
    pub(super) version: String,
    /// When requests began to wait: nanoseconds of CLOCK_MONOTONIC.
    pub(super) begun: u64,
    pub(super) image: Option<HandedImage>,
    pub(super) limits: Limits,
    pub(super) server: HandedServer,
    standard_input: usize,
}

impl HandedImage {
    pub(super) fn give(files: HandedFiles, to: &mut Descriptors) -> std::io::Result<HandedImage> {
        let HandedFiles { image, cached, witness, sectors } = files;
        Ok(HandedImage {
            image: to.put(image)?,
            cached: cached.map(|file| to.put(file)).transpose()?,
            witness: witness.map(|file| to.put(file)).transpose()?,
            sectors,
        })
    }

    pub(super) fn take(self, from: &mut Arrived) -> Result<HandedFiles> {
        let mut file = |place| from.take(place).map(File::from);
        Ok(HandedFiles {
            image: file(self.image)?,
            cached: self.cached.map(&mut file).transpose()?,
            witness: self.witness.map(&mut file).transpose()?,
            sectors: self.sectors,
        })
    }
}

impl Handed {
    pub(super) fn new(
        begun: u64,
        image: Option<HandedImage>,
        limits: Limits,
        server: HandedServer,
        to: &mut Descriptors,
    ) -> std::io::Result<Handed> {
        let standard_input = to.put(rustix::stdio::stdin())?;
        let (format, version) = (FORMAT, VERSION.to_owned());
        Ok(Handed { format, version, begun, image, limits, server, standard_input })
    }

    /// The end of a socket pair at which all of it waits.
    pub(super) fn send(&self, descriptors: Descriptors) -> Result<OwnedFd> {
        let mut text = File::from(rustix::fs::memfd_create(
            "vlane-handover",
            rustix::fs::MemfdFlags::CLOEXEC,
        )?);
        text.write_all(&serde_json::to_vec(self)?)?;
        let mut all = vec![OwnedFd::from(text)];
        all.extend(descriptors.into_inner());
        let count = u32::try_from(all.len())?.to_le_bytes();
        let (ours, theirs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        for some in all.chunks(AT_ONCE) {
            let some: Vec<_> = some.iter().map(AsFd::as_fd).collect();
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_ONCE))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            ensure!(ancillary.push(SendAncillaryMessage::ScmRights(&some)), "too many descriptors");
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            rustix::net::sendmsg(&ours, &[IoSlice::new(&count)], &mut ancillary, flags)?;
        }
        Ok(theirs)
    }

    /// State that another program has handed to this one, if it has; standard input is restored.
    pub(super) fn receive() -> Result<Option<(Handed, Arrived)>> {
        if std::env::var(VARIABLE).ok().as_deref() != Some(&std::process::id().to_string()) {
            return Ok(None);
        }
        let mut descriptors = receive_all(rustix::stdio::stdin())?.into_iter();
        let Some(text) = descriptors.next() else { bail!("there is nothing") };
        let (mut text, mut bytes) = (File::from(text), Vec::new());
        text.rewind()?;
        text.read_to_end(&mut bytes)?;
        let format = serde_json::from_slice::<Form>(&bytes)?.format;
        ensure!(format == FORMAT, "it has format {format}, and this version knows {FORMAT}");
        let handed: Handed = serde_json::from_slice(&bytes)?;
        let mut arrived = Arrived::new(descriptors.collect());
        rustix::stdio::dup2_stdin(arrived.take(handed.standard_input)?)
            .context("standard input")?;
        Ok(Some((handed, arrived)))
    }
}

/// The part common to every format.
#[derive(Deserialize)]
struct Form {
    format: u32,
}

fn receive_all(from: impl AsFd) -> Result<Vec<OwnedFd>> {
    let (mut all, mut expected) = (Vec::new(), 1);
    while all.len() < expected {
        let mut count = [0; 4];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_ONCE))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        rustix::net::recvmsg(&from, &mut [IoSliceMut::new(&mut count)], &mut ancillary, flags)
            .context("its descriptors have not come")?;
        let before = all.len();
        for part in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(some) = part {
                all.extend(some);
            }
        }
        ensure!(all.len() > before, "descriptors are missing; raise their limit (ulimit -n)");
        expected = usize::try_from(u32::from_le_bytes(count))?;
    }
    Ok(all)
}
