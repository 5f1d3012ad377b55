// SPDX-License-Identifier: Apache-2.0

//! `skep-probe`: server and client of the connectivity test. Exit codes are those of curl: 6 no name, 7 refused, 22 error
//! of HTTP, 28 timeout.

mod names;
mod ping;

use std::{
    env,
    error::Error,
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _},
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

const USAGE: &str = "usage:
  skep-probe serve PORT...                 answers HTTP on the ports, and the requests of perf on the last one
  skep-probe get URL [SECONDS] [4|6] [HEADER]   requests http://HOST:PORT/PATH
  skep-probe get-by SERVER URL [SECONDS]   the same; the address of the name is asked of a DNS server, ADDRESS:PORT
  skep-probe ping ADDRESS [SECONDS] [full] sends echo requests; `full`: as large as the route allows
  skep-probe names PORT NAME=ADDRESS...    answers DNS
  skep-probe resolve NAME                  prints the addresses of a name
  skep-probe perf HOST PORT stream|rr|crr SECONDS";
const LIMIT: Duration = Duration::from_secs(10);
const CHUNK: usize = 64 * 1024;

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["serve", ref ports @ ..] if !ports.is_empty() => serve(ports),
        ["get", url, ref more @ ..] => return get(url, more),
        ["get-by", server, url, ref more @ ..] => return get_by(server, url, more),
        ["ping", address, ref more @ ..] => return ping(address, more),
        ["names", port, ref names @ ..] => names::serve(port, names),
        ["resolve", name] => return resolve(name),
        ["perf", host, port, kind, seconds] => perf(host, port, kind, seconds),
        _ => Err(USAGE.into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(ports: &[&str]) -> Result<(), Box<dyn Error>> {
    let mut threads = Vec::new();
    for port in ports {
        let port: u16 = port.parse()?;
        let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
        // Without IPv6 on the node.
        let listener = TcpListener::bind(any).or_else(|_| TcpListener::bind(("0.0.0.0", port)))?;
        threads.push(thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                thread::spawn(move || answer(stream));
            }
        }));
    }
    for thread in threads {
        let _ = thread.join();
    }
    Ok(())
}

fn answer(mut stream: TcpStream) -> io::Result<()> {
    let mut first = [0];
    stream.set_nodelay(true)?;
    if stream.peek(&mut first)? == 0 {
        return Ok(());
    }
    match first[0] {
        // A stream is read to its end.
        b'S' => {
            let mut chunk = vec![0; CHUNK];
            while stream.read(&mut chunk)? > 0 {}
            return Ok(());
        }
        // A byte is sent back.
        b'R' => {
            let mut byte = [0];
            while stream.read(&mut byte)? > 0 {
                stream.write_all(&byte)?;
            }
            return Ok(());
        }
        _ => {}
    }
    stream.set_read_timeout(Some(LIMIT))?;
    let peer = stream.peer_addr()?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut request = String::new();
    reader.read_line(&mut request)?;
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line.trim().is_empty() {
            break;
        }
        headers.push(line.trim().to_owned());
    }
    let path = request.split(' ').nth(1).unwrap_or("/");
    let is_allowed = path != "/private"
        || headers
            .iter()
            .any(|line| line.eq_ignore_ascii_case("X-Very-Secret-Token: 42"));
    let (status, text) = match is_allowed {
        true => ("200 OK", "ok"),
        false => ("403 Forbidden", "forbidden"),
    };
    let name = env::var("HOSTNAME").unwrap_or_default();
    let body = format!("{text}\nserver: {name}\nclient: {}\n", peer.ip());
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

fn code(error: &io::Error) -> u8 {
    match error.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => 28,
        io::ErrorKind::ConnectionRefused => 7,
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => 7,
        _ => 56,
    }
}

fn get(url: &str, more: &[&str]) -> ExitCode {
    let limit = more.first().and_then(|text| text.parse().ok()).unwrap_or(2);
    let limit = Duration::from_secs(limit);
    let rest = url.trim_start_matches("http://");
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let authority = match authority.rsplit_once(':') {
        Some((_, port)) if port.parse::<u16>().is_ok() => authority.to_owned(),
        _ => format!("{authority}:80"),
    };
    let Ok(addresses) = authority.to_socket_addrs() else {
        eprintln!("{authority}: no such name");
        return ExitCode::from(6);
    };
    let family = more.get(1).copied().unwrap_or_default();
    let address = addresses.into_iter().find(|address| match family {
        "4" => address.is_ipv4(),
        "6" => address.is_ipv6(),
        _ => true,
    });
    let Some(address) = address else {
        eprintln!("{authority}: no address of IPv{family}");
        return ExitCode::from(6);
    };
    let header = more
        .get(2)
        .map(|header| format!("{header}\r\n"))
        .unwrap_or_default();
    let answer = || -> io::Result<(String, String)> {
        let mut stream = TcpStream::connect_timeout(&address, limit)?;
        let local = stream.local_addr()?.to_string();
        stream.set_read_timeout(Some(LIMIT))?;
        write!(
            stream,
            "GET /{path} HTTP/1.1\r\nHost: {authority}\r\n{header}Connection: close\r\n\r\n"
        )?;
        let mut text = Vec::new();
        stream.read_to_end(&mut text)?;
        Ok((local, String::from_utf8_lossy(&text).into_owned()))
    };
    match answer() {
        Ok((local, text)) => {
            let status = text.split(' ').nth(1).unwrap_or("000");
            println!("{local} -> {address} = {status}");
            let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
            print!("{body}");
            match status {
                "000" => ExitCode::from(52),
                status if status >= "400" => ExitCode::from(22),
                _ => ExitCode::SUCCESS,
            }
        }
        Err(error) => {
            eprintln!("{address}: {error}");
            ExitCode::from(code(&error))
        }
    }
}

/// Requests a URL, whose name a DNS server knows.
fn get_by(server: &str, url: &str, more: &[&str]) -> ExitCode {
    let limit = more.first().and_then(|text| text.parse().ok()).unwrap_or(2);
    let rest = url.trim_start_matches("http://");
    let end = rest.find([':', '/']).unwrap_or(rest.len());
    let (name, rest) = rest.split_at(end);
    let server: SocketAddr = match server.parse() {
        Ok(server) => server,
        Err(error) => {
            eprintln!("{server}: {error}");
            return ExitCode::FAILURE;
        }
    };
    match names::resolve(server, name, Duration::from_secs(limit)) {
        Ok(address) => get(&format!("http://{address}{rest}"), more),
        Err(error) => {
            eprintln!("{name} of {server}: {error}");
            ExitCode::from(6)
        }
    }
}

fn ping(address: &str, more: &[&str]) -> ExitCode {
    let limit = more.first().and_then(|text| text.parse().ok()).unwrap_or(2);
    let Ok(parsed) = address.parse() else {
        eprintln!("{address}: no address");
        return ExitCode::FAILURE;
    };
    match ping::ping(parsed, Duration::from_secs(limit), more.get(1) == Some(&"full")) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{address}: {error}");
            ExitCode::from(code(&error))
        }
    }
}

fn resolve(name: &str) -> ExitCode {
    match (name, 80).to_socket_addrs() {
        Ok(addresses) => {
            let mut all: Vec<IpAddr> = addresses.map(|address| address.ip()).collect();
            all.dedup();
            all.iter().for_each(|address| println!("{address}"));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{name}: {error}");
            ExitCode::from(6)
        }
    }
}

fn connect(host: &str, port: &str) -> Result<TcpStream, Box<dyn Error>> {
    let address = (host, port.parse()?)
        .to_socket_addrs()?
        .next()
        .ok_or("no address")?;
    let stream = TcpStream::connect_timeout(&address, LIMIT)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn perf(host: &str, port: &str, kind: &str, seconds: &str) -> Result<(), Box<dyn Error>> {
    let seconds: u64 = seconds.parse()?;
    let (begun, limit) = (Instant::now(), Duration::from_secs(seconds));
    if kind == "stream" {
        let mut stream = connect(host, port)?;
        let (chunk, mut bytes) = (vec![b'S'; CHUNK], 0_u64);
        while begun.elapsed() < limit {
            bytes += stream.write(&chunk)? as u64;
        }
        println!("{}", bytes * 8 / 1_000_000 / seconds.max(1));
        return Ok(());
    }
    let mut stream = connect(host, port)?;
    let mut times = Vec::new();
    while begun.elapsed() < limit {
        let one = Instant::now();
        if kind == "crr" {
            stream = connect(host, port)?;
        }
        let mut byte = *b"R";
        stream.write_all(&byte)?;
        stream.read_exact(&mut byte)?;
        times.push(one.elapsed().as_micros());
    }
    times.sort_unstable();
    let at = |percent: usize| {
        times
            .get(times.len() * percent / 100)
            .copied()
            .unwrap_or_default()
    };
    let rate = times.len() as u64 / seconds.max(1);
    println!("{rate} {} {} {}", at(50), at(90), at(99));
    Ok(())
}
