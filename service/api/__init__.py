"""The gRPC API: protobuf messages at the edge, the types of `service.front` inside."""
