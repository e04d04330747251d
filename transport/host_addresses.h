// IP addresses of this machine. Called while starting.
#pragma once

#include <sys/socket.h>

#include <string>

namespace leeway::transport {

// `bind` as a numeric address that is one of ours. Throws ConfigError when it is none, or is the
// wildcard, under which no peer could find us.
std::string own_address(const std::string& bind);

bool is_loopback(const std::string& address);

// The network interface that a numeric address of ours is on; "" when none has it.
std::string interface_of(const std::string& address);

// "10.0.0.1", "fe80::1"; "" for what is no IP address.
std::string numeric_address(const sockaddr* address);

}  // namespace leeway::transport
