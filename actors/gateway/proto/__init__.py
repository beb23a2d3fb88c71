"""Messages of `apache.rocketmq.v2`, the gRPC protocol of RocketMQ 5.

Generated from release v2.1.2 of apache/rocketmq-apis (Apache License 2.0) by protoc 7.35:

    python -m grpc_tools.protoc -I. --python_out=OUT --pyi_out=OUT \\
        apache/rocketmq/v2/definition.proto apache/rocketmq/v2/service.proto

with the import of `definition_pb2` changed to this package.
"""
