/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Options of this node, for all programs: set before load; the verifier removes code that an option
 * rules out. Rust twin: NodeOptions in bpf/programs/src/options.rs
 */
#ifndef NODE_OPTIONS_H
#define NODE_OPTIONS_H

#include "../common/compiler.h"

/* Of programs that see packets. Seconds are those of CLOCK_MONOTONIC. */
struct packet_options {
	/* Seconds that a connection is remembered without a packet. */
	__u32 ct_tcp;
	__u32 ct_any;
	__u32 ct_service_tcp;
	__u32 ct_service_any;
	__u32 ct_service_grace; /* closing: a SYN in this time goes to the same backend */
	__u32 ct_tcp_syn;
	__u32 ct_tcp_fin;
	__u32 ct_report_interval;   /* least seconds between two reports of a connection */
	__u32 trace_length;	    /* bytes of a packet in an event */
	__u32 trace_length_overlay; /* of a packet of the tunnel, with what is in it */
	__u32 events_rate;	    /* events a second and CPU, 0 = all */
	__u32 events_burst;
	__u32 cilium_host; /* interfaces cilium_host and cilium_net */
	__u32 cilium_net;
	__u32 host_endpoint; /* id of the host endpoint */
	__be32 loopback4;    /* source of a pod that connects to itself through a service */
	__be32 loopback6[4];
	__be32 router6[4]; /* gateway of pods */
	__be32 router4;
	__u32 tunnel_device;	 /* interface */
	__be32 nodeport_source4; /* SNAT address of packets to backends on other nodes */
	__be32 nodeport_source6[4];
	__be32 native4; /* network without masquerade */
	__be32 native6[4];
	__be32 rss4; /* network of outer sources of IPIP packets */
	__be32 rss6[4];
	__be32 nat46x64_prefix[3]; /* prefix of embedded IPv4 addresses */
	__u32 maglev_size;	   /* backend ids in a lookup table */
	__u32 maglev_seed4;	   /* of the hash of packets */
	__u32 maglev_seed6;
	__u16 nat_min; /* source ports of translated connections, host order */
	__u16 nat_max;
	__u8 native4_bits;
	__u8 native6_bits;
	__u8 ct_report_flags; /* TCP flags that are reported at once */
	__u8 services;	      /* translate packets of pods to services */
	__u8 masquerade4;
	__u8 masquerade6;
	__u8 masquerade_nodes; /* also of packets to other nodes */
	__u8 fragments4;       /* follow fragments */
	__u8 fragments6;
	__u8 icmp_rules;       /* ICMP types are ports in policies */
	__u8 icmp_frag_needed; /* "fragmentation needed" bypasses policies */
	__u8 policy_accounting;
	__u8 identity_mark;
	__u8 arp_responder;    /* answer ARP requests of pods */
	__u8 reply_no_backend; /* ICMP errors for services without backends */
	__u8 dual_stack;       /* world identities per address family */
	__u8 has_skip_neigh;   /* BPF_FIB_LOOKUP_SKIP_NEIGH exists (6.3) */
	__u8 vlan_all;	       /* all tagged packets bypass the programs */
	__u16 vlan_ids[5];     /* ids of tagged packets that bypass the programs; 0 = none */
	__u8 xdp;	       /* XDP programs run before tc programs */
	__u8 maglev;	       /* Maglev for clients outside */
	__u8 lb_per_service;   /* algorithm by service, for pods as well */
	__u8 tunnel;	       /* 0 packets between nodes are routed, 1 VXLAN, 2 Geneve */
	__u16 tunnel_port;     /* UDP, host order */
	__u16 tunnel_port_min; /* source ports of encapsulated packets, host order */
	__u16 tunnel_port_max;
	__u8 dsr;      /* enum dsr_dispatch: encoding of the service address */
	__u8 dsr_all;  /* DSR for all services; else for those with the flag */
	__u8 dsr_icmp; /* ICMP errors for packets that exceed the MTU by DSR */
	__u8 rss4_bits;
	__u8 rss6_bits;
	__u8 sctp;	       /* SCTP has ports */
	__u8 ip_masq_agent;    /* nonMasqueradeCIDRs are in a map */
	__u8 nat46x64;	       /* NAT46X64_SERVICES, NAT46X64_GATEWAY */
	__u16 nat46x64_mtu;    /* MTU of devices of translated packets */
	__u8 ipip_termination; /* decapsulate IPIP packets to services */
	__u8 health_probes;    /* health checker sockets select their backends */
	__u8 has_mem_keys;     /* memory of a caller may be key of a map (6.2) */
	__u8 ct_accounting;    /* conntrack accounting */
	__u8 events;	       /* EVENTS_*: events outside of endpoints */
	__u8 debug_code;       /* an endpoint or the node has debug events */
	__u8 bandwidth;	       /* enforce the rates of cilium_throttle */
	__u8 protocols;	       /* track IP protocols without ports */
	__u8 legacy_routing;   /* route packets of pods through the kernel's stack */
	__u8 host_firewall;    /* enforce the policy of the host endpoint */
	__u8 flows;	       /* keep a flow table */
	__u8 pad[1];
};

struct node_options {
	__u64 host_netns_cookie;
	__u64 trace_interval; /* least nanoseconds between two events, 0 = all */
	__u32 kernel_hz;      /* ticks a second, with clock_jiffies */
	__u16 nodeport_min;   /* host order */
	__u16 nodeport_max;
	__u8 ipv4; /* translate IPv4, also in IPv6 sockets */
	__u8 ipv6;
	__u8 nodeport;		  /* look up NodePort and HostPort surrogates */
	__u8 host_only;		  /* leave sockets of pods alone */
	__u8 reject_no_endpoints; /* services without backends always answer with an error */
	__u8 external_ip_mitigation;
	__u8 local_redirect;
	__u8 mke; /* sockets with the MKE class id count as the host's */
	__u8 trace;
	__u8 trace_aggregation; /* 0 none ... 4 most */
	__u8 clock_jiffies;
	__u8 has_set_retval; /* bpf_set_retval exists (5.18) */
	struct packet_options packet;
};
_Static_assert(sizeof(struct node_options) == 288, "node_options layout");

/* In .rodata: set before load, constant for the verifier. */
extern const volatile struct node_options options;

#ifdef __bpf__
/* Non-volatile access to options: values are known to the verifier only, which sees what is set
 * before load.
 */
static __always_inline const struct packet_options *packet_options(void)
{
	const struct packet_options *packet = (const struct packet_options *)&options.packet;

	OPAQUE(packet);
	return packet;
}
#endif

#endif /* NODE_OPTIONS_H */
