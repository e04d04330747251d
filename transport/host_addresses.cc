#include "transport/host_addresses.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "common/result.h"

namespace leeway::transport {
namespace {

struct Own {
  std::string address, interface;
};

std::vector<Own> list_own() {
  std::vector<Own> own;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return own;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    const std::string text = numeric_address(entry->ifa_addr);
    if (!text.empty()) own.push_back({text, entry->ifa_name});
  }
  return own;
}

std::vector<std::string> addresses_here() {
  std::vector<std::string> here;
  for (const Own& own : list_own())
    if (std::find(here.begin(), here.end(), own.address) == here.end()) here.push_back(own.address);
  return here;
}

}  // namespace

std::string numeric_address(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address->sa_family == AF_INET)
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text, sizeof text);
  if (address->sa_family == AF_INET6)
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, text,
              sizeof text);
  return text;
}

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1" || address == "localhost";
}

std::string interface_of(const std::string& address) {
  if (is_loopback(address)) return "lo";  // also those of 127/8 that are not listed
  for (const Own& own : list_own())
    if (own.address == address) return own.interface;
  return "";
}

std::string own_address(const std::string& bind) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(bind.c_str(), nullptr, &hints, &list);
  if (error != 0)
    throw ConfigError(fmt::format("bind address '{}': {}", bind, gai_strerror(error)));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, freeaddrinfo);
  const auto here = addresses_here();
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    const std::string text = numeric_address(entry->ai_addr);
    // All of 127/8 is ours, though only one of it is listed.
    if (is_loopback(text) || std::find(here.begin(), here.end(), text) != here.end()) return text;
  }
  throw ConfigError(fmt::format("bind address '{}' is not one of this machine's: use one of {}",
                                bind, fmt::join(here, ", ")));
}

}  // namespace leeway::transport
