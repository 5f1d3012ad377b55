// SPDX-License-Identifier: Apache-2.0

//! Test vectors shared with every other implementation, and what holds for any table.

use crate::bench::backends;
use crate::{Backend, HashSeed, Maglev, MaglevError, TableSize, murmur3_x64_128};
use proptest::prelude::*;
use sha2::{Digest, Sha256};

fn maglev(size: u64) -> Maglev {
    Maglev::new(TableSize::try_from(size).unwrap(), HashSeed::default())
}

/// Ids 1, 2, … in the order given.
fn listed<'a>(addresses: &[&'a str], weights: &[u16]) -> Vec<Backend<&'a str>> {
    let backend = |(i, (&address, &weight))| Backend {
        id: i as u32 + 1,
        weight,
        address,
    };
    addresses.iter().zip(weights).enumerate().map(backend).collect()
}

#[track_caller]
fn check(size: u64, backends: Vec<Backend<&str>>, counts: &[usize], first: &[u32], sha256: &str) {
    let table = maglev(size).lookup_table(backends.clone());

    assert_eq!(table.len(), size as usize);
    let count = |b: &Backend<_>| table.iter().filter(|&&id| id == b.id).count();
    assert_eq!(backends.iter().map(count).collect::<Vec<_>>(), counts);
    assert_eq!(&table[..16], first);
    let bytes: Vec<u8> = table.iter().flat_map(|id| id.to_le_bytes()).collect();
    let digest: String = Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(digest, sha256);
}

const THREE: [&str; 3] = ["10.0.0.1:80/TCP", "10.0.0.2:80/TCP", "10.0.0.3:80/TCP"];

#[test]
fn equal_weights_match_the_vector() {
    for weights in [[100; 3], [1; 3]] {
        check(
            251,
            listed(&THREE, &weights),
            &[84, 84, 83],
            &[2, 2, 1, 1, 2, 3, 2, 2, 1, 3, 3, 3, 2, 2, 3, 1],
            "81a386cd0df51e68c1dd6dd4fbeb8e10e4e1ad330f237379b188f3eb772f704e",
        );
    }
}

#[test]
fn default_size_matches_the_vector() {
    check(
        16381,
        listed(&THREE, &[100; 3]),
        &[5461, 5460, 5460],
        &[1, 3, 3, 1, 1, 3, 1, 2, 2, 2, 3, 3, 3, 1, 2, 2],
        "7896bd65409aa49c83f7d7f3faff68b3bbe3955289d0a0e5680e495bd7bb1376",
    );
}

#[test]
fn unequal_weights_match_the_vectors() {
    check(
        251,
        listed(&THREE, &[50, 30, 20]),
        &[125, 76, 50],
        &[2, 1, 1, 1, 2, 1, 2, 2, 1, 1, 3, 3, 1, 2, 1, 1],
        "e131a01c42361d1ae63db8a8e3bb6f302561e2fe5aff4a371751f2a8bd072965",
    );
    check(
        1021,
        listed(
            &[
                "10.0.0.1:80/TCP",
                "10.0.0.2:80/TCP",
                "10.0.0.3:80/TCP",
                "10.0.0.4:80/TCP",
            ],
            &[2, 13, 111, 10],
        ),
        &[16, 98, 832, 75],
        &[3, 3, 3, 2, 3, 3, 3, 3, 2, 3, 3, 4, 3, 2, 3, 3],
        "112f9f53ab636c82679c16843ec040185b8083c1b1a12c369a4272f05610120f",
    );
}

#[test]
fn ipv6_backends_match_the_vector() {
    check(
        251,
        listed(&["[fd00::1]:53/UDP", "[fd00::2]:53/UDP"], &[100; 2]),
        &[126, 125],
        &[1, 2, 2, 2, 2, 1, 1, 1, 2, 2, 1, 1, 2, 1, 2, 2],
        "73278393ab64ca772195063f3aaa47d28fd68e7187a552f4e0e4894e86a90f73",
    );
}

#[test]
fn hashes_match_the_vectors() {
    let seed = HashSeed::default().murmur;
    for (text, h1, h2, m, offset, skip) in [
        (
            "[10.0.0.1:80/TCP,State:active]",
            0xc61a_94cb_c80e_5006,
            0x4aa5_ddef_6f23_e6ea,
            251,
            184,
            95,
        ),
        (
            "[10.0.0.1:80/TCP,State:active]",
            0xc61a_94cb_c80e_5006,
            0x4aa5_ddef_6f23_e6ea,
            16381,
            5487,
            12575,
        ),
        (
            "[10.0.0.2:80/TCP,State:active]",
            0x208c_ee7b_bea8_2422,
            0x31c3_c9f4_710f_0c31,
            251,
            233,
            54,
        ),
        (
            "[10.0.0.2:80/TCP,State:active]",
            0x208c_ee7b_bea8_2422,
            0x31c3_c9f4_710f_0c31,
            16381,
            15155,
            16374,
        ),
        (
            "[[fd00::1]:53/UDP,State:active]",
            0xcf0a_f07d_1bdd_2a7b,
            0xe302_663a_922b_db42,
            251,
            95,
            69,
        ),
    ] {
        let hash: (u64, u64) = murmur3_x64_128(text.as_bytes(), seed);
        assert_eq!(hash, (h1, h2), "{text}");
        assert_eq!(
            (hash.0 % m, hash.1 % (m - 1) + 1),
            (offset, skip),
            "{text} in a table of {m}"
        );
    }
    // The reference values of the algorithm's author for an empty input.
    assert_eq!(murmur3_x64_128(b"", 0), (0, 0));
}

#[test]
fn no_backends_make_no_table() {
    assert_eq!(
        maglev(251).lookup_table(Vec::<Backend<&str>>::new()),
        Vec::<u32>::new()
    );
}

#[test]
fn default_seed_is_the_documented_one() {
    assert_eq!("JLfvgnHc2kaSUFaI".parse(), Ok(HashSeed::default()));
    assert_eq!(HashSeed::default().to_string(), "JLfvgnHc2kaSUFaI");
}

#[test]
fn seed_changes_the_table() {
    let other = Maglev::new(TableSize::default(), "AAAAAAAAAAAAAAAA".parse().unwrap());
    let backends = || listed(&THREE, &[100; 3]);
    assert_ne!(
        other.lookup_table(backends()),
        Maglev::default().lookup_table(backends())
    );
}

#[test]
fn bad_settings_are_refused_by_name() {
    let error = |text: &str| text.parse::<HashSeed>().unwrap_err().to_string();
    assert_eq!(error("*"), "`*` is not base64");
    assert_eq!(error("AAAA"), "decoded seed has 3 bytes, it must have 12");
    for size in [0, 250, 16382, u64::MAX] {
        assert_eq!(TableSize::try_from(size), Err(MaglevError::TableSize(size)));
    }
    assert!(
        MaglevError::TableSize(7)
            .to_string()
            .contains("7 is not supported, choose one of [251, 509,")
    );
}

#[test]
fn a_backend_that_leaves_moves_few_others() {
    let maglev = Maglev::default();
    let all = backends(100, |_| 100);
    let before = maglev.lookup_table(all.clone());

    let after = maglev.lookup_table(all.iter().filter(|b| b.id != 50).cloned());

    let moved = before
        .iter()
        .zip(&after)
        .filter(|&(&old, &new)| old != 50 && old != new)
        .count();
    assert!(moved < before.len() / 50, "{moved} entries of others moved");
}

/// The fill as the paper words it, with permutations written out: what the fast one is compared to.
fn plain(maglev: &Maglev, mut backends: Vec<Backend<String>>) -> Vec<u32> {
    backends.sort_by_key(|b| format!("[{},State:active]", b.address));
    let (m, l) = (u64::from(maglev.table_size().get()), backends.len());
    let permutation = |b: &Backend<String>| {
        let text = format!("[{},State:active]", b.address);
        let (h1, h2) = murmur3_x64_128(text.as_bytes(), maglev.seed().murmur);
        (0..m)
            .map(|j| (h1 % m + j * (h2 % (m - 1) + 1)) % m)
            .collect::<Vec<_>>()
    };
    let permutations: Vec<Vec<u64>> = backends.iter().map(permutation).collect();
    let sum: u64 = backends.iter().map(|b| u64::from(b.weight)).sum();
    let weighted = sum / l as u64 > 1;
    let mut counters: Vec<f64> = backends.iter().map(|b| f64::from(b.weight) / l as f64).collect();
    let mut next = vec![0; l];
    let mut table = vec![u32::MAX; m as usize];
    for n in 0..m {
        let mut i = n as usize % l;
        if weighted {
            while (n + 1) * u64::from(backends[i].weight) < counters[i] as u64 {
                i = (i + 1) % l;
            }
            counters[i] += sum as f64;
        }
        while table[permutations[i][next[i]] as usize] != u32::MAX {
            next[i] += 1;
        }
        table[permutations[i][next[i]] as usize] = backends[i].id;
    }
    table
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_weights_fill_the_table_as_the_plain_form_does(
        weights in prop::collection::vec(prop_oneof![0..4u16, 1..200u16, any::<u16>()], 1..60),
        size in prop::sample::select(vec![251u64, 509, 1021]),
    ) {
        let all = backends(weights.len() as u32, |i| weights[i as usize]);
        let maglev = maglev(size);
        prop_assert_eq!(maglev.lookup_table(all.clone()), plain(&maglev, all));
    }

    #[test]
    fn order_of_backends_does_not_matter(count in 1..40u32, rotate in 0..40usize) {
        let mut all = backends(count, |i| i as u16 * 7);
        let table = maglev(251).lookup_table(all.clone());
        all.rotate_left(rotate % count as usize);
        prop_assert_eq!(maglev(251).lookup_table(all), table);
    }
}

fn configured(flags: &[(&str, &str)]) -> Result<Maglev, String> {
    let settings = flags
        .iter()
        .fold(hive::Settings::new(), |settings, (name, value)| {
            settings.flag(*name, *value)
        });
    let plan = hive::Hive::new([skep_base_settings::cell(), crate::cell()])
        .root::<Maglev>()
        .plan(settings)
        .map_err(|report| report.to_string())?;
    let built = plan.build().map_err(|error| error.to_string())?;
    Ok(built.get::<Maglev>().unwrap())
}

#[test]
fn cell_gives_what_is_configured() {
    assert_eq!(configured(&[]), Ok(Maglev::default()));
    let small = configured(&[
        ("bpf-lb-maglev-table-size", "1021"),
        ("bpf-lb-maglev-hash-seed", "AAAAAAAAAAAAAAAA"),
    ]);
    assert_eq!(
        small,
        Ok(Maglev::new(
            TableSize::try_from(1021).unwrap(),
            "AAAAAAAAAAAAAAAA".parse().unwrap()
        ))
    );
}

#[test]
fn cell_refuses_bad_settings_all_at_once() {
    let report = configured(&[
        ("bpf-lb-maglev-table-size", "1000"),
        ("bpf-lb-maglev-hash-seed", "AAAA"),
    ])
    .unwrap_err();
    for part in [
        "bpf-lb-maglev-table-size",
        "1000 is not supported",
        "bpf-lb-maglev-hash-seed",
        "it must have 12",
    ] {
        assert!(report.contains(part), "{report}");
    }
}
