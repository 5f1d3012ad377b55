// SPDX-License-Identifier: Apache-2.0

//! Pages of the program and of its libraries: those no longer needed can be dropped.
//!
//! Most of a program's code runs while it starts and then never again. Its pages stay mapped all the same, and with
//! each comes what the kernel maps around it (64 KiB, whatever is in the page cache), so that an idle program of 20 MB
//! has nearly all of them. [`release`] unmaps them, and lets the kernel take them first when memory is short. What is
//! used again is mapped again from the page cache, with a minor fault a window: microseconds, and no reading from
//! disks unless memory was short.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::{fs, io};

/// Part of a file in memory, in which nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mapping {
    range: Range<usize>,
    resident: u64,
}

/// Unmaps the code and the constants of the program and its libraries.
///
/// ```
/// skep_base_alloc::program::release()?;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
///
/// `/proc/self/smaps` cannot be read.
pub fn release() -> io::Result<()> {
    visit(&mut |mapping| unmap(&mapping.range))
}

/// How many bytes of the code and the constants of the program and its libraries are mapped now: what [`release`]
/// unmaps.
///
/// ```
/// let before = skep_base_alloc::program::resident()?;
/// skep_base_alloc::program::release()?;
/// println!("{before} bytes, now {}", skep_base_alloc::program::resident()?);
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
///
/// `/proc/self/smaps` cannot be read.
pub fn resident() -> io::Result<u64> {
    let mut sum = 0;
    visit(&mut |mapping| sum += mapping.resident * 1024)?;
    Ok(sum)
}

/// What the program and its libraries are compared with, and what is done with their mappings.
struct Visit<'a> {
    intact: Vec<Mapping>,
    act: &'a mut dyn FnMut(&Mapping),
}

/// Calls `act` with each mapping of the program and its libraries in which nothing was changed. None of them goes meanwhile.
fn visit(act: &mut dyn FnMut(&Mapping)) -> io::Result<()> {
    let intact = intact(&fs::read_to_string("/proc/self/smaps")?);
    let mut visit = Visit { intact, act };
    // SAFETY: `object` is called before this returns, with what it expects.
    unsafe { libc::dl_iterate_phdr(Some(object), (&raw mut visit).cast()) };
    Ok(())
}

/// Called for the program and each library, with the loader's lock: none of them comes or goes meanwhile.
unsafe extern "C" fn object(info: *mut libc::dl_phdr_info, _size: usize, visit: *mut c_void) -> c_int {
    // SAFETY: `visit` hands this over, and there is no other reference to it; the loader's description is valid during the call.
    let (visit, info) = unsafe { (&mut *visit.cast::<Visit<'_>>(), &*info) };
    if info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: the loader's table, of this many entries.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    for header in headers {
        if header.p_type != libc::PT_LOAD || header.p_flags & libc::PF_W != 0 {
            continue;
        }
        // Widths of addresses differ between machines, and all fit.
        #[allow(
            clippy::useless_conversion,
            clippy::cast_possible_truncation,
            reason = "see above"
        )]
        let start = info.dlpi_addr.wrapping_add(header.p_vaddr) as usize;
        let Some(mapping) = visit.intact.iter().find(|mapping| mapping.range.contains(&start)) else {
            continue;
        };
        (visit.act)(mapping);
    }
    0
}

fn unmap(range: &Range<usize>) {
    let (start, length) = (range.start as *mut c_void, range.len());
    // Without it, unmapping counts as a use of each page. Linux 5.4 has it; before, the pages are just not the first to go.
    // SAFETY: changes nothing that the program sees.
    unsafe { libc::madvise(start, length, libc::MADV_COLD) };
    // Locked memory is refused, and stays.
    // SAFETY: nothing in the range differs from the file, it cannot be written to, and the object it is of cannot be
    // unloaded now: whatever is read or run there next is mapped again, and is the same.
    unsafe { libc::madvise(start, length, libc::MADV_DONTNEED) };
}

/// Mappings of files that cannot be written to, and have no pages of their own: relocations, breakpoints.
fn intact(smaps: &str) -> Vec<Mapping> {
    let mut found: Vec<Mapping> = Vec::new();
    let mut is_candidate = false;
    for line in smaps.lines() {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        match (words.as_slice(), found.last_mut()) {
            (["Rss:", size, "kB"], Some(last)) if is_candidate => last.resident = size.parse().unwrap_or(0),
            (["Anonymous:", size, "kB"], Some(_)) if is_candidate && *size != "0" => drop(found.pop()),
            ([range, mode, _offset, _device, _inode, path, ..], _) if range.contains('-') => {
                is_candidate = matches!(*mode, "r-xp" | "r--p") && path.starts_with('/');
                if let Some(range) = addresses(range).filter(|_| is_candidate) {
                    found.push(Mapping { range, resident: 0 });
                }
            }
            ([range, _, _, _, _], _) if range.contains('-') => is_candidate = false,
            _ => {}
        }
    }
    found
}

fn addresses(text: &str) -> Option<Range<usize>> {
    let (start, end) = text.split_once('-')?;
    let address = |text: &str| usize::from_str_radix(text, 16).ok();
    Some(address(start)?..address(end)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Large beside what else the test uses.
    static CONSTANTS: [u8; 4 << 20] = [7; 4 << 20];

    #[test]
    fn releases_what_can_be_read_again() {
        let size = CONSTANTS.len() as u64;
        let sum = || {
            CONSTANTS
                .iter()
                .map(|byte| u64::from(*std::hint::black_box(byte)))
                .sum::<u64>()
        };
        let before = (sum(), resident().unwrap());

        release().unwrap();

        let left = resident().unwrap();
        assert!(before.1 > size, "{} bytes", before.1);
        assert!(
            left < before.1 - size / 2,
            "{left} of {} bytes are still there",
            before.1
        );
        assert_eq!(sum(), before.0);
    }

    #[test]
    fn what_can_be_written_to_or_was_changed_is_left_alone() {
        let smaps = "\
5000-8000 r--p 00000000 fe:00 12   /usr/bin/program
Size:                 12 kB
Rss:                   8 kB
Anonymous:             0 kB
VmFlags: rd mr mw me
8000-a000 r-xp 00003000 fe:00 12   /usr/bin/program (deleted)
Rss:                   4 kB
Anonymous:             0 kB
a000-b000 r--p 00005000 fe:00 12   /usr/bin/program
Rss:                   4 kB
Anonymous:             4 kB
b000-c000 rw-p 00006000 fe:00 12   /usr/bin/program
Rss:                   4 kB
Anonymous:             0 kB
c000-d000 r--s 00000000 fe:00 13   /usr/share/shared
Rss:                   4 kB
Anonymous:             0 kB
d000-e000 r--p 00000000 00:00 0
Rss:                   4 kB
Anonymous:             0 kB
e000-f000 r-xp 00000000 00:00 0    [vdso]
Rss:                   4 kB
Anonymous:             0 kB
";

        let found = intact(smaps);

        let of = |range, resident| Mapping { range, resident };
        assert_eq!(found, [of(0x5000..0x8000, 8), of(0x8000..0xa000, 4)]);
    }
}
